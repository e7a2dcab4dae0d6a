"""The job by Flower's simulation: Ray's workers do the clients' work."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from job import Job, Report, accuracy, data_of, given_job
from torch.nn.functional import cross_entropy

CORES = os.cpu_count() or 1


def client_app(job: Job) -> ClientApp:
    """What a client does: an epoch of SGD."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        client = int(context.node_config["partition-id"])
        data = data_of(job)
        module = job.module()
        module.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(module.parameters(), lr=job.lr)
        module.train()
        order = torch.randperm(data.y.shape[1])
        for places in order.split(job.batch):
            optimizer.zero_grad()
            cross_entropy(module(data.x[client, places]), data.y[client, places]).backward()
            optimizer.step()
        sent = RecordDict()
        sent["arrays"] = ArrayRecord(module.state_dict())
        sent["metrics"] = MetricRecord({"num-examples": len(order)})
        return Message(content=sent, reply_to=message)

    return app


def main() -> None:
    """Do the job."""
    job = given_job()
    data = job.data()
    report = Report()
    module = job.module()
    app = ServerApp()

    def evaluate(round_: int, arrays: ArrayRecord) -> MetricRecord:
        module.load_state_dict(arrays.to_torch_state_dict())
        found = accuracy(module, data)
        if round_:  # Flower also tests the first model.
            report.round_ended(found)
        return MetricRecord({"accuracy": found})

    @app.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=len(data.y))
        arrays = ArrayRecord(module.state_dict())
        strategy.start(grid=grid, initial_arrays=arrays, num_rounds=job.rounds, evaluate_fn=evaluate)

    resources: dict[str, dict[str, Any]] = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": CORES},
    }
    run_simulation(app, client_app(job), num_supernodes=len(data.y), backend_config=resources)
    report.show(version("flwr"))


if __name__ == "__main__":
    main()
