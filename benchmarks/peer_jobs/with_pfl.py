"""The job by Apple's pfl; with `torchrun`, processes share the clients."""

from __future__ import annotations

import os
from importlib.metadata import version

import numpy as np
import torch
from job import Report, given_job
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

TEST_BATCH = 1000


class Network(nn.Module):
    """The job's network with the two methods that pfl asks for."""

    def __init__(self, module: nn.Module) -> None:
        """Take a network."""
        super().__init__()
        self.module = module

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy of a batch, in training."""
        self.train()
        return cross_entropy(self.module(images), labels)

    @torch.inference_mode()
    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Weighted]:
        """The share of correct predictions."""
        self.eval()
        correct = (self.module(images).argmax(1) == labels).sum().item()
        return {"accuracy": Weighted(correct, len(labels))}


class Rounds(TrainingProcessCallback):
    """Tests the model after every round, the first one too, which pfl's own callback leaves out."""

    def __init__(self, evaluation: CentralEvaluationCallback, report: Report) -> None:
        """Test with one callback of pfl, and note it in the report."""
        self._evaluation = evaluation
        self._report = report

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        """Called by pfl when a round has ended."""
        _, metrics = self._evaluation._eval(model)
        (found,) = [value for name, value in metrics.to_simple_dict().items() if "accuracy" in name]
        self._report.round_ended(found)
        return False, metrics


def main() -> None:
    """Do the job."""
    job = given_job()
    data = job.data()
    np.random.seed(0)  # noqa: NPY002  # pfl draws from it
    torch.manual_seed(0)
    report = Report()
    network = Network(job.module())
    model = PyTorchModel(
        model=network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )

    def dataset(client: int) -> PyTorchTensorDataset:
        order = torch.randperm(data.y.shape[1])
        return PyTorchTensorDataset((data.x[client][order], data.y[client][order]), user_id=str(client))

    clients = list(range(len(data.y)))
    federation = FederatedDataset(dataset, get_user_sampler("minimize_reuse", clients))
    backend = SimulatedBackend(federation, federation, postprocessors=[WeightByDatapoints()])
    test = PyTorchTensorDataset((data.test_x, data.test_y))
    evaluation = CentralEvaluationCallback(test, model_eval_params=NNEvalHyperParams(local_batch_size=TEST_BATCH))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=job.rounds + 1,
            train_cohort_size=len(clients),
            val_cohort_size=0,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=job.lr, local_batch_size=job.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=TEST_BATCH),
        callbacks=[Rounds(evaluation, report)],
    )
    if os.environ.get("RANK", "0") == "0":
        report.show(version("pfl"))
    if torch.distributed.is_initialized():
        # Otherwise one process aborts when the other one ends first.
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
