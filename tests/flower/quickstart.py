"""An app as Flower's quickstart has it, on digits of which half of the nodes call every class by another number."""

from typing import Any

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fedstrata.flower import fold, proximal, serve

NODES = 8


class Net(nn.Module):
    """A small network."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(torch.relu(self.hidden(inputs)))
        return outputs


class FrozenNet(Net):
    """The same with a hidden layer that is frozen, and the same for all."""

    def __init__(self) -> None:
        super().__init__()
        weights = np.random.default_rng(3).normal(scale=0.3, size=(32, 64))
        self.hidden.weight.data = torch.from_numpy(weights).float()
        self.hidden.requires_grad_(False).bias.data.zero_()


def trained(model: nn.Module) -> ArrayRecord:
    """The arrays that training moves."""
    return ArrayRecord({name: each.detach() for name, each in model.named_parameters() if each.requires_grad})


def of(message: Message) -> Any:
    """The content of a message, whose records are of the kinds that the app knows."""
    return message.content


def samples(partition: int, count: int = 120) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Inputs and labels of a node; those of odd numbers have other labels."""
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))[partition * count : (partition + 1) * count]
    labels = found.target[order]
    return found.data[order].astype(np.float32) / 16, (labels + 5 * (partition % 2)) % 10


def load_data(partition: int) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """The loaders of a node's training and test data."""
    inputs, labels = map(torch.from_numpy, samples(partition))
    train, test = TensorDataset(inputs[:96], labels[:96]), TensorDataset(inputs[96:], labels[96:])
    return DataLoader(train, batch_size=16, shuffle=True), DataLoader(test, batch_size=16)


def of_samples(loader: DataLoader[Any]) -> int:
    """The number of samples of a loader."""
    dataset: Any = loader.dataset
    return len(dataset)


def client_app(*, folds: bool, served: bool = False, network: type[Net] = Net) -> ClientApp:
    """The app of the nodes: with the line for folds or as Flower's template has it; with the line for whole rounds."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        model = network()
        model.load_state_dict(of(message)["arrays"].to_torch_state_dict(), strict=False)
        loader, _ = load_data(int(context.node_config["partition-id"]))
        if folds:
            loader = fold(loader, message)
        optimizer = torch.optim.SGD(model.parameters(), lr=float(of(message)["config"]["lr"]), momentum=0.9)
        for _ in range(3):
            for inputs, labels in loader:
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(inputs), labels) + proximal(model, message)
                loss.backward()
                optimizer.step()
        metrics: dict[str, Any] = {"train_loss": loss.item(), "num-examples": of_samples(loader)}
        content = RecordDict({"arrays": trained(model), "metrics": MetricRecord(metrics)})
        return Message(content=content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        model = network()
        model.load_state_dict(of(message)["arrays"].to_torch_state_dict(), strict=False)
        loader, test = load_data(int(context.node_config["partition-id"]))
        loader = fold(loader, message, test=test) if folds else test
        loss, right = 0.0, 0
        with torch.no_grad():
            for inputs, labels in loader:
                outputs = model(inputs)
                loss += float(nn.functional.cross_entropy(outputs, labels, reduction="sum"))
                right += int((outputs.argmax(1) == labels).sum())
        count = of_samples(loader)
        metrics: dict[str, Any] = {"eval_loss": loss / count, "eval_acc": right / count, "num-examples": count}
        return Message(content=RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    if served:
        serve(app, train, evaluate)
    return app
