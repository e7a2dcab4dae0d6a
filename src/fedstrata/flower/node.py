"""What a node does with the message of a round: the same around the app of a user's own and around that of fedstrata.

It reads the request, has the work done, keeps what the client keeps to itself, and makes the reply.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from flwr.app import ArrayRecord, Context, Message
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedstrata.base.errors import FedstrataError, InputError
from fedstrata.base.files import folder_lock, replace_file
from fedstrata.base.quoting import one_line, without_paths
from fedstrata.core import Layout, Report
from fedstrata.engine import ClientStore
from fedstrata.flower.grid import reply_to
from fedstrata.flower.payload import Payload, decode
from fedstrata.flower.replies import Reply, write_reply
from fedstrata.flower.requests import Request, missing_tensors, read_request
from fedstrata.uploads.compression import Compression, Packed

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

log = logging.getLogger(__name__)

ACTION = "fedstrata"
"""The name of the function of an app that does what a client does in a round."""

ROUND = f"train.{ACTION}"
"""The type of the message for it."""

KEPT_RUNS = 8
"""The number of runs whose tensors a node keeps of a client: one that was stopped may be resumed."""


@dataclass(frozen=True)
class Kept:
    """Where a node keeps what its client keeps to itself, by name as in `ClientStore`.

    Attributes:
        context: The node's context, where it has no folder. It is gone when the node restarts.
        folder: The folder.
    """

    context: Context
    folder: Path | None

    @classmethod
    def of(cls, context: Context) -> Kept:
        """The place that the configuration of a node names in "state-dir"."""
        folder = context.node_config.get("state-dir")
        return cls(context, None if folder is None else Path(str(folder)))

    def read(self, run: str, client: int) -> Mapping[str, Tensor]:
        """Read what a client keeps in a run.

        Raises:
            InputError: When the file is damaged.
        """
        if self.folder is None:
            found = self.context.state.array_records.get(_kept_name(run, client))
            return {} if found is None else found.to_torch_state_dict()
        file = self.folder / f"{_kept_name(run, client)}.safetensors"
        try:
            return load(file.read_bytes()) if file.exists() else {}
        except SafetensorError as error:
            raise InputError(f"{file}: expected the client's own layers, found {error}; remove the file") from None

    def write(self, run: str, client: int, tensors: Mapping[str, Tensor]) -> None:
        """Keep tensors in place of those that were kept; they are on the disk before the reply leaves."""
        if self.folder is None:
            self.context.state[_kept_name(run, client)] = ArrayRecord(dict(tensors))
            return
        file = self.folder / f"{_kept_name(run, client)}.safetensors"
        replace_file(file, save(dict(tensors)), private=True)
        own = sorted(self.folder.glob(f"*-{client}.safetensors"), key=lambda path: path.stat().st_mtime)
        for old in own[:-KEPT_RUNS]:
            old.unlink()


def _kept_name(run: str, client: int) -> str:
    """The name of what a client keeps in a run, which is safe as that of a file."""
    if not run.replace("_", "").isalnum():
        raise InputError(f"expected a run named by letters, digits and underscores, found {run!r}")
    return f"{run}-{client}"


class WorkDone(NamedTuple):
    """What a client has done for a request.

    Attributes:
        report: The report of it alone.
        compression: How it compresses its updates; None where it does not.
        packed: The compressed updates, by task.
    """

    report: Report
    compression: Compression | None = None
    packed: Mapping[str, Packed] = {}


RoundWork = Callable[[Request, ClientStore], WorkDone]
"""Does what a request asks, with what the client keeps; what it is to keep from now on, it puts there."""

Prepare = Callable[[Payload, Message, Context], tuple[str, Layout, RoundWork]]
"""Reads what comes with a request: the name of the run, the tensors of its models, and how to work."""


def answer_rounds(app: ClientApp, prepare: Prepare) -> None:
    """Let an app answer the messages of rounds."""

    @app.train(ACTION)
    def answer(message: Message, context: Context) -> Message:
        return reply_to(message, answer_round(message, context, prepare))


def answer_round(message: Message, context: Context, prepare: Prepare) -> Payload:
    """Answer the message of a round. What cannot be done is said in one line, without a path of this machine."""
    own = tuple(Path(str(context.node_config[name])) for name in ("data", "state-dir") if name in context.node_config)
    try:
        payload = decode(message.content)
        run, layout, work = prepare(payload, message, context)
        kept = Kept.of(context)
        if kept.folder is None:
            return _answered(payload, run, layout, work, kept)
        # A late process of the same node may still be at work.
        with folder_lock(kept.folder, wait=lambda: None):
            return _answered(payload, run, layout, work, kept)
    except FedstrataError as error:
        reason = without_paths(str(error), (*own, *(path.parent for path in own)))
    except Exception as error:
        # Its text may tell of this machine and its data, so that it stays here.
        log.exception("the client could not do what it was asked")
        reason = f"unexpected {type(error).__name__}; the log of its node says more"
    return Payload({"failed": one_line(reason)})


def _answered(payload: Payload, run: str, layout: Layout, work: RoundWork, kept: Kept) -> Payload:
    """Do what a request asks, and make the reply."""
    request = read_request(payload, layout)
    client, round = request.client, request.plan.round
    before = request.of_use(kept.read(run, client))
    store = ClientStore()
    store.restore(before)
    if missing := missing_tensors(request, layout, store):
        return Payload({"missing": ", ".join(missing)})
    done = work(request, store)
    if saved := store.saved_in(round):
        # More than the engine keeps: the server may go back to its second-newest checkpoint.
        kept.write(run, client, {**before, **store.tensors()})
    return write_reply(Reply.of(done.report, saved), request, layout, run, done.compression, done.packed)
