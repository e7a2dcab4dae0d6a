"""The rounds of a run whose clients are nodes of Flower: an ordinary run, with the same records."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from fedstrata import report
from fedstrata.base.errors import RecordError
from fedstrata.base.files import append_line, folder_lock, refuse_links
from fedstrata.build.run_setup import RunSetup
from fedstrata.config import Experiment
from fedstrata.core import Plan, State
from fedstrata.flower.clients import RoundTraffic
from fedstrata.flower.federation import NETWORK
from fedstrata.flower.grid import FlowerNode
from fedstrata.flower.members import Members
from fedstrata.play.progress import StatusLine
from fedstrata.play.rounds import PlanReply, timed_reply
from fedstrata.play.run import play_shown
from fedstrata.records.checkpoint import checkpoints
from fedstrata.records.folder import Folder
from fedstrata.records.schema import ClientEntry
from fedstrata.report.summary import warnings
from fedstrata.results.run import Run


def network_folder(out: Path) -> Path:
    """The folder of what a run keeps of the network, which is made if need be."""
    refuse_links(out, [NETWORK])
    folder = out / NETWORK
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _members_file(out: Path) -> Path:
    """The file with the members of a run."""
    return out / NETWORK / "nodes.json"


def known_members(members: Members, out: Path) -> int:
    """Read who the clients of a run that goes on are; return its next round, which is 0 before its first.

    Raises:
        RecordError: When rounds were played, and the file of the members is not there.
    """
    done = checkpoints(out / "checkpoint")
    if not members.load(_members_file(out)) and done:
        raise RecordError(f"{_members_file(out)}: expected the nodes of the run, found no such file; start a new run")
    return int(done[0].stem) + 1 if done else 0


def play_on_nodes(
    experiment: Experiment,
    setup: RunSetup,
    out: Path,
    line: StatusLine,
    members: Members,
    nodes: Callable[[], Iterable[FlowerNode]],
    *,
    resume: bool,
    after: Callable[[Plan], object] = lambda plan: None,
    names: Callable[[], tuple[str, ...]] | None = None,
    on_round: Callable[[Mapping[str, Any], State], None] = lambda record, state: None,
) -> Run:
    """Play a run over a grid, round by round, and write its report.

    Args:
        experiment: The experiment, checked and complete.
        setup: What the run needs. Its clients have a `RoundTraffic`, and it joins clients as the members do.
        out: The run folder.
        line: Shows the progress.
        members: Who speaks for which client. They are brought up to date after every plan.
        nodes: Says which nodes are connected.
        resume: Whether the run goes on from the folder's checkpoint.
        after: Is called when a plan has been answered.
        names: The names of the clients for people; by default those of their nodes.
        on_round: Is called with the record of each round and the state after it.
    """
    clients: Any = setup.clients
    called = names or (lambda: members.all_names)
    if resume and (before := Folder(out).data()) is not None:
        clients.sizes.update({each.id: (each.train or 0, each.test or 0) for each in before.clients})

    def reply(plan: Plan) -> PlanReply:
        network_folder(out)
        members.save(_members_file(out))
        found = timed_reply(clients, plan)
        traffic: RoundTraffic = clients.traffic
        # A resumed run tells of its last round once more.
        told = {"round": plan.round, **asdict(traffic), "seconds": found.seconds}
        append_line(out / NETWORK / "rounds.jsonl", json.dumps(told) + "\n", private=True)
        members.update(nodes(), plan.round + 1)
        after(plan)
        _record_clients(out, called(), clients.sizes)
        return found._replace(absent=traffic.absent, rejected=traffic.rejected)

    finished = play_shown(
        experiment, setup, out, line, reply=reply, resume=resume, on_round=on_round, may_skip_checkpoints=False
    )
    with folder_lock(out):
        _record_clients(out, called(), clients.sizes)
    for warning in warnings(finished.summary):
        line.keep(warning)
    line.keep(f"report: {report.build(out)}")
    return replace(finished, names=called())


def _record_clients(out: Path, names: Iterable[str], sizes: Mapping[int, tuple[int, int]]) -> None:
    """Write who the clients are: some have joined since the run began, and only they know their numbers of samples."""
    known = ((client, name, *sizes.get(client, (0, 0))) for client, name in enumerate(names))
    entries = [ClientEntry(id=id, name=name, train=train or None, test=test or None) for id, name, train, test in known]
    folder = Folder(out.resolve())
    if (before := folder.data()) is not None and before.clients != entries:
        folder.add_data(before.model_copy(update={"clients": entries}))
