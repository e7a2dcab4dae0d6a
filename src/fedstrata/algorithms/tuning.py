"""Tuning a model on one client's data, and the models between the tuned one and that of the cluster.

Such models: Wortsman et al., "Robust fine-tuning of zero-shot models", CVPR 2022.
"""

from __future__ import annotations

from dataclasses import replace

from fedstrata.core import LocalTask, LocalTraining

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""How far such models lie from that of the cluster. With 0, it is that model."""

MAX_EXCESS_LOSS = 1.0
"""The most by which such a model counts as worse than that of the cluster, in nats. It is not chosen in any case, and
must not hide what the others show."""


def tuning_by_epochs(
    task: LocalTask, training: LocalTraining, name: str, epochs: int, *, stream: str
) -> dict[str, LocalTask]:
    """The tasks by which clients tune a model, one for each epoch.

    The learning rate falls linearly from that of `training` to 0: with e of E epochs to go, it is e / E of it. With few
    samples, a constant rate would leave a model that is as good as its last few steps.

    Args:
        task: What is the same in each epoch: the models, the tensors, the fold.
        training: How a client trains otherwise.
        name: The name of the tuning, with which those of its tasks begin.
        epochs: The number of epochs.
        stream: The name of the tuning in the clients' random streams.

    Returns:
        The tasks in their order. The last one ends with the tuned model.
    """
    tasks = dict[str, LocalTask]()
    before = ""
    for epoch in range(epochs):
        once = replace(training.with_epochs(1), lr=training.lr * (epochs - epoch) / epochs)
        after = f"{name}-{epoch + 1}"
        tasks[after] = replace(task, training=once, continues=before, stream=f"{stream}-{epoch + 1}")
        before = after
    return tasks
