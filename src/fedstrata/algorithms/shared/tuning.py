"""Tuning a model on one client's data, with a learning rate that falls.

Few samples at a constant rate leave a model that is as good as its last few steps.
"""

from __future__ import annotations

from dataclasses import replace

from fedstrata.core import LocalTask, LocalTraining


def tuning_by_epochs(
    task: LocalTask, training: LocalTraining, name: str, epochs: int, *, stream: str
) -> dict[str, LocalTask]:
    """The tasks by which clients tune a model, one for each epoch.

    The learning rate falls linearly from that of `training` to 0: with e of E epochs to go, it is e / E of it.

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
