"""Who takes part: clients are sampled, join, leave, get other data, or are put into the wrong cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from fedstrata.base.errors import ExperimentError
from fedstrata.base.randomness import generator, secret_generator
from fedstrata.config import Experiment
from fedstrata.config.tables import CohortTable
from fedstrata.core import State, make_pending, reassign
from fedstrata.core.state import StateT


class CohortSample(NamedTuple):
    """Who takes part in a round.

    Attributes:
        cohort: The ids of the clients that are selected, ascending, (m,) int64.
        dropped: The ids of those of the cohort that never answer, ascending.
    """

    cohort: torch.Tensor
    dropped: torch.Tensor


def cohort_size(clients: int, fraction: float) -> int:
    """The number of clients that are selected of so many: a share of them, and at least one."""
    return min(clients, max(1, _round_half_up(fraction * clients)))


def dropouts(size: int, dropout: float) -> int:
    """The number of clients of a cohort that never answer; one is always left, as else no model would ever move."""
    return min(_round_half_up(dropout * size), max(size - 1, 0))


def _round_half_up(value: float) -> int:
    """The nearest integer; Python's own rounding would take 2.5 to 2."""
    return int(value + 0.5)


@dataclass(frozen=True)
class Participation:
    """Who could take part in each round, and who does. An event of round t happens before that round.

    Attributes:
        clients: The number of clients, with those that join later and those whose data are handed over.
        seed: The seed of the run.
        fraction: The share of the clients that is selected in a round, in (0, 1]; at least one client, unless
            `poisson`.
        dropout: The share of the cohort that never answers, in [0, 1).
        joins: The round of a client's first cohort, by client.
        leaves: The round from which a client takes no part, by client.
        handovers: By client, a round and another client: from that round on the client holds the data of the other,
            which takes no part itself.
        misplaced: A round, and the share of the clients in clusters that is put into another cluster at random then.
        weights: A function from a round to the weight of each client in its draw, at least 0, (n,); None is an equal
            chance.
        poisson: Whether each client is selected by itself with the chance `fraction`, so that cohorts have no fixed
            size, and may be empty.
        independent_dropout: Whether each client drops out by itself. With a fixed number of them, another client would
            drop out because of one that takes part, and central noise would hide too little.
        secret: Whether the seed is a secret of the server, which nobody may find by trying.
        scored: The number of clients that score the models of a round; 0 is all of them.
        known: Whether it is known before the run who could take part in each round.
    """

    clients: int
    seed: int
    fraction: float
    dropout: float = 0.0
    joins: Mapping[int, int] = field(default_factory=dict)
    leaves: Mapping[int, int] = field(default_factory=dict)
    handovers: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    misplaced: Sequence[tuple[int, float]] = ()
    weights: Callable[[int], torch.Tensor] | None = None
    poisson: bool = False
    independent_dropout: bool = False
    secret: bool = False
    scored: int = 0
    known: bool = True

    def active(self, round: int) -> torch.Tensor:
        """The ids of the clients that could take part in a round, ascending, (a,)."""
        given = {other for _, other in self.handovers.values()}
        here = [
            client
            for client in range(self.clients)
            if self.joins.get(client, 0) <= round < self.leaves.get(client, round + 1) and client not in given
        ]
        return torch.tensor(here, dtype=torch.int64)

    def sample(self, round: int) -> CohortSample:
        """Draw who takes part in a round: a pure function, the same for every algorithm."""
        clients = self.active(round)
        size = cohort_size(len(clients), self.fraction)
        if self.poisson:
            chosen = (self._uniform("cohort", round, len(clients)) < self.fraction).nonzero().flatten()
            size = len(chosen)
        elif self.weights is None:
            chosen = self._permutation("cohort", round, len(clients))[:size]
        else:
            # One after the other without replacement, each in proportion to its weight.
            weights = self.weights(round)[clients]
            size = min(size, int((weights > 0).sum()))
            draw = generator(self.seed, "cohort", round)
            chosen = torch.multinomial(weights.double(), size, generator=draw) if size else torch.arange(0)
        cohort = clients[chosen.sort().values]
        if self.independent_dropout:
            lost = (self._uniform("dropout", round, size) < self.dropout).nonzero().flatten()
        else:
            lost = self._permutation("dropout", round, size)[: dropouts(size, self.dropout)]
        return CohortSample(cohort, cohort[lost].sort().values)

    def _uniform(self, stream: str, round: int, count: int) -> torch.Tensor:
        """Random numbers between 0 and 1 for one purpose, (count,) float64; of a secret seed all bits count."""
        if self.secret:
            return torch.from_numpy(secret_generator(self.seed, (stream, round)).random(count))
        return torch.rand(count, generator=generator(self.seed, stream, round), dtype=torch.float64)

    def _permutation(self, stream: str, round: int, count: int) -> torch.Tensor:
        """The numbers from 0 on in a random order for one purpose, (count,) int64; the seed as in `_uniform`."""
        if self.secret:
            return torch.from_numpy(secret_generator(self.seed, (stream, round)).permutation(count))
        return torch.randperm(count, generator=generator(self.seed, stream, round))

    def expected_answers(self, round: int) -> float:
        """The number of clients that answer in a round on average: those of its cohort that do not drop out."""
        clients = len(self.active(round))
        size = cohort_size(clients, self.fraction)
        if self.independent_dropout:
            return (self.fraction * clients if self.poisson else size) * (1 - self.dropout)
        # At least one, so that a sum to which nobody adds has a mean.
        return float(max(1, size - dropouts(size, self.dropout)))

    def scoring(self, round: int, *, last: bool) -> torch.Tensor:
        """The ids of the clients that score the models of a round, ascending. After the last round everyone does."""
        clients = self.active(round)
        if last or self.all_score(len(clients)):
            return clients
        draw = generator(self.seed, "scored", round)
        return clients[torch.randperm(len(clients), generator=draw)[: self.scored].sort().values]

    def all_score(self, clients: int) -> bool:
        """Whether all of so many clients score the models of every round."""
        return not 0 < self.scored < clients

    def apply_events(self, state: StateT, round: int) -> tuple[StateT, list[dict[str, Any]]]:
        """The state with what happens between round - 1 and round, and an event for each."""
        events: list[dict[str, Any]] = []
        if round == 1:
            absent = set(range(self.clients)) - set(self.active(1).tolist())
            state = make_pending(state, sorted(absent), node=0)
        changed = {client: since for client, (since, _) in self.handovers.items()}
        for kind, rounds in (("join", self.joins), ("leave", self.leaves), ("change", changed)):
            clients = [client for client, since in rounds.items() if since == round]
            if clients:
                # What a client whose data changed was grouped by is no longer true: it is placed like a newcomer.
                state = make_pending(state, clients, node=None if kind == "leave" else 0)
                events.append({"kind": kind, "clients": clients})
        # With one cluster nobody can be misplaced. Then it happens as soon as there are two (HiCFL, Fig. 11).
        first_split = state.tree[0].split == round - 1
        for since, share in self.misplaced:
            due = since == round or (since < round and first_split)
            if not due:
                continue
            moves = self._moves(state, since, share)
            events.append({"kind": "misplace", "clients": sorted(moves)})
            state = reassign(state, moves)
        return state, events

    def _moves(self, state: State, since: int, share: float) -> dict[int, int]:
        """The new cluster of each client that is misplaced; none while there is one cluster."""
        k = len(state.models)
        if k < 2:
            return {}
        placed = (state.labels >= 0).nonzero().flatten()
        draw = generator(self.seed, "misplace", since)
        size = _round_half_up(share * len(placed))
        chosen = placed[torch.randperm(len(placed), generator=draw)[:size]]
        shifts = torch.randint(1, k, (len(chosen),), generator=draw)
        return dict(zip(chosen.tolist(), ((state.labels[chosen] + shifts) % k).tolist(), strict=True))


def sampling_weights(
    cohort: CohortTable, sizes: Callable[[int], Sequence[int]]
) -> Callable[[int], torch.Tensor] | None:
    """The weights by which an experiment samples clients, as `Participation` takes them.

    Args:
        cohort: The keys.
        sizes: A function from a round to the number of training samples of each client, n in all.
    """
    if cohort.weights:
        own = torch.tensor(cohort.weights, dtype=torch.float64)
        return lambda round: own
    if cohort.sampling == "size":
        return lambda round: torch.tensor(sizes(round), dtype=torch.float64)
    return None


def participation_of(experiment: Experiment) -> Participation:
    """Read who takes part in an experiment, and when.

    Raises:
        ExperimentError: When an event names a client that does not exist, it cannot happen or contradicts another one,
            or a round has no client.
    """
    events = experiment.events
    joins = {client: event.round for event in events.join for client in event.clients}
    leaves = {client: event.round for event in events.leave for client in event.clients}
    handovers = {event.client: (event.round, event.takes_data_of) for event in events.change}
    _check_events(experiment)
    participation = Participation(
        clients=experiment.data.clients,
        seed=experiment.seed,
        fraction=experiment.cohort.fraction,
        dropout=experiment.cohort.dropout,
        joins=joins,
        leaves=leaves,
        handovers=handovers,
        misplaced=[(event.round, event.share) for event in events.misplace],
        poisson=experiment.cohort.sampling == "poisson",
        independent_dropout=experiment.cohort.sampling == "poisson" or experiment.privacy.kind == "central",
        scored=experiment.cohort.scored,
    )
    for round in sorted({1, *leaves.values()}):
        if not len(participation.active(round)):
            raise ExperimentError(
                f"events: expected at least one client in round {round}, found none; let fewer join later or leave"
            )
    _check_weights(experiment, participation)
    return participation


def participation_elsewhere(experiment: Experiment, joins: Mapping[int, int]) -> Participation:
    """Read who takes part in an experiment whose clients are somewhere else: who could, is not known before.

    Args:
        experiment: The experiment.
        joins: The round of each client's first cohort. The caller may change it while the run goes on.
    """
    # Sizes are not known either: what would draw by them is refused.
    weights = sampling_weights(experiment.cohort, lambda round: [])
    return replace(participation_of(experiment), joins=joins, weights=weights, known=False)


def _check_events(experiment: Experiment) -> None:
    """Refuse events of clients that do not exist, after the last round, and of a client that contradict each other."""
    events = experiment.events
    n = experiment.data.clients
    joins = [("join", event.round, client) for event in events.join for client in event.clients]
    changes = [("change", event.round, event.client) for event in events.change]
    leaves = [("leave", event.round, client) for event in events.leave for client in event.clients]
    by_client: dict[int, list[tuple[str, int]]] = {}
    for kind, round, client in (*joins, *changes, *leaves):
        by_client.setdefault(client, []).append((kind, round))
    for client in [*by_client, *(event.takes_data_of for event in events.change)]:
        if client >= n:
            raise ExperimentError(f"events: client {client} does not exist; data.clients = {n} makes 0 to {n - 1}")
    for client, own in by_client.items():
        kinds = [kind for kind, _ in own]
        if len(set(kinds)) < len(kinds) or any(later[1] <= earlier[1] for earlier, later in pairwise(own)):
            found = ", ".join(f"{kind} in round {round}" for kind, round in own)
            raise ExperimentError(
                f"events: expected client {client} to join, to change and to leave at most once, in different rounds "
                f"and in this order, found {found}; move or take out one entry"
            )
    for event in events.change:
        if event.takes_data_of in by_client:
            raise ExperimentError(
                f"events.change: expected client {event.client} to take the data of a client that takes no part and "
                f"has no events, found client {event.takes_data_of}; name another one in takes_data_of"
            )
    rounds = [round for own in by_client.values() for _, round in own]
    last = max([*rounds, *(event.round for event in events.misplace)], default=0)
    if last > experiment.rounds:
        raise ExperimentError(
            f"events: expected rounds of at most rounds = {experiment.rounds}, found {last}; set more rounds, "
            "or take the entry out"
        )


def _check_weights(experiment: Experiment, participation: Participation) -> None:
    """Refuse weights that do not fit the clients."""
    cohort = experiment.cohort
    if not cohort.weights:
        return
    if cohort.sampling != "uniform":
        raise ExperimentError(f"cohort.weights: expected none beside cohort.sampling = {cohort.sampling!r}; use one")
    if len(cohort.weights) != participation.clients:
        raise ExperimentError(
            f"cohort.weights: expected a weight for each of the {participation.clients} clients, "
            f"found {len(cohort.weights)}"
        )
    for round in sorted({1, *participation.leaves.values()}):
        if not sum(cohort.weights[client] for client in participation.active(round).tolist()) > 0:
            raise ExperimentError(f"cohort.weights: expected a weight above 0 of a client in round {round}, found none")
