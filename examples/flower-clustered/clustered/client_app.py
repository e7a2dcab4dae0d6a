"""What a site does with a message: an ordinary ClientApp, with one line of fedstrata in each function."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from clustered import task
from fedstrata.flower import fold

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model of the message on the data of this site."""
    model = task.Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loader, _ = task.load_data(int(context.node_config["partition-id"]))
    loader = fold(loader, message)
    loss = task.train(model, loader, float(message.content["config"]["lr"]))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    return Message(
        content=RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message
    )


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the model of the message on the data of this site."""
    model = task.Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loader, test_loader = task.load_data(int(context.node_config["partition-id"]))
    loader = fold(loader, message, test=test_loader)
    loss, accuracy = task.test(model, loader)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(loader.dataset)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)
