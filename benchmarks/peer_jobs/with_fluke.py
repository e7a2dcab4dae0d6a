"""The job by fluke: its `CentralizedFL`, whose clients train one after the other."""

from __future__ import annotations

from importlib.metadata import version

import torch

# fluke imports torchvision for networks and data that this job does not use. torchvision built for CUDA cannot load its
# compiled operators beside torch for the CPU, and fails at its import unless these are known.
for operator in ("nms", "qnms"):
    torch.library.define(f"torchvision::{operator}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.server import Server
from fluke.utils import FederationObserver
from job import Report, given_job
from torch.nn import CrossEntropyLoss

TEST_BATCH = 1000


class Rounds(FederationObserver):
    """Notes the accuracy after each round."""

    def __init__(self, rounds: int, report: Report) -> None:
        """Note so many rounds."""
        self._left = rounds
        self._report = report

    def server_evaluation(self, round: int, eval_type: str, evals: dict[str, float], **_: object) -> None:
        """Called by fluke when the server has tested its model, which it does once more after the last round."""
        if self._left:
            self._report.round_ended(evals["accuracy"])
            self._left -= 1


def main() -> None:
    """Do the job."""
    job = given_job()
    data = job.data()
    report = Report()
    environment = FlukeENV()
    environment.set_seed(0)
    environment.set_device("cpu")
    environment.set_evaluator(ClassificationEval(eval_every=1, n_classes=10))
    environment.set_eval_cfg(server=True, locals=False, pre_fit=False, post_fit=False)
    optimizer = OptimizerConfigurator(DDict(name="SGD", lr=job.lr), DDict(name="StepLR", step_size=1, gamma=1))
    clients = [
        Client(
            index=client,
            train_set=FastDataLoader(images, labels, num_labels=10, batch_size=job.batch, shuffle=True),
            test_set=None,
            optimizer_cfg=optimizer,
            loss_fn=CrossEntropyLoss(),
            local_epochs=1,
        )
        for client, (images, labels) in enumerate(zip(data.x, data.y, strict=True))
    ]
    test = FastDataLoader(data.test_x, data.test_y, num_labels=10, batch_size=TEST_BATCH)
    server = Server(job.module(), test, clients, weighted=True)
    algorithm = FedAVG(len(clients), None, {}, clients=clients, server=server)
    algorithm.set_callbacks(Rounds(job.rounds, report))
    algorithm.run(job.rounds, 1.0)
    report.show(version("fluke-fl"))


if __name__ == "__main__":
    main()
