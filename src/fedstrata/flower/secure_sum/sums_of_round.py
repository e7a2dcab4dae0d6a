"""The secure sums of a round on the server: one for each model, over the messages of the federation.

Keys and shares are exchanged before clients train, the masked vector comes in place of the update, and the shares that
open a sum are asked for when it is known who stayed. A client that is lost on the way, or sends what no honest client
would, is out of the sum. A sum of too few is not opened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from secrets import token_hex

import torch

from fedstrata.base.errors import InputError
from fedstrata.core import TRAIN, Layout, Plan, Report
from fedstrata.flower.payload import ExpectedReply, Payload
from fedstrata.flower.secure_sum.masking import KEY_SHARE_BYTES, PUBLIC_BYTES, SEALED_BYTES, SEED_SHARE_BYTES
from fedstrata.flower.secure_sum.messages import (
    SumRequest,
    arrays_of,
    by_client,
    expected_arrays,
    public_array,
    public_of_array,
    read_array,
    read_bad_shares,
    says_not_finite,
    sealed_array,
    with_vector,
    words_of_tensor,
    write_sum_request,
)
from fedstrata.flower.secure_sum.server import SumServer, signed, without_room, word_for
from fedstrata.flower.secure_sum.sums import EXTRA, OpenedSum, Summed, SumTerms, groups_of, report_of_sums


@dataclass(frozen=True)
class SumStep:
    """A step of the sums of a round.

    Attributes:
        requests: What each client is asked.
        expected: What its reply may hold.
        take: Takes the reply of a client in. It raises InputError for one that no honest client sends.
        enough: Whether no further reply is needed.
    """

    requests: Mapping[int, Payload]
    expected: Mapping[int, ExpectedReply]
    take: Callable[[int, Payload], None]
    enough: Callable[[], bool] = lambda: False


@dataclass
class SumRound:
    """The sums of one attempt at a round.

    Attributes:
        terms: The terms of the sums.
        layout: The tensors of the network.
        plan: The plan.
        max_weights: The largest weight of each client that is there.
        left_out: Why clients are asked for nothing, by client.
        servers: The sums that have begun, by the model that their clients start from.
        not_finite: The clients that say that their updates are not finite.
    """

    terms: SumTerms
    layout: Layout
    plan: Plan
    max_weights: Mapping[int, int]
    left_out: dict[int, str] = field(default_factory=dict)
    servers: dict[int, SumServer] = field(default_factory=dict)
    not_finite: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Begin a sum for each model that enough clients start from."""
        columns = self.layout.columns(self.plan.tasks[TRAIN].upload)
        self._groups = dict[int, tuple[int, ...]]()
        for model, members in groups_of(self.plan).items():
            weights = {client: self.max_weights.get(client, 1) for client in members if client not in self.left_out}
            for client in without_room(self.terms.levels, weights):
                self.left_out[client] = f"its {weights.pop(client)} samples have no room in a sum of 64 bits"
            clients = tuple(weights)
            self._groups[model] = clients
            needed = self.terms.needed(len(clients))
            if len(clients) >= needed:
                word = word_for(self.terms.levels, len(clients), max(weights.values()))
                self.servers[model] = SumServer(token_hex(8), clients, needed, word, len(columns) + EXTRA)
        self._of = {client: server for server in self.servers.values() for client in server.members}

    def keys(self) -> SumStep:
        """Ask every client for new public keys."""
        requests = {
            client: write_sum_request(self._request("keys", client, server.members))
            for client, server in self._of.items()
        }
        reply = expected_arrays({"public": (2, PUBLIC_BYTES)})

        def take(client: int, payload: Payload) -> None:
            (keys,) = public_of_array(read_array(payload, "public")[None])
            self._of[client].take_keys(client, keys)

        return SumStep(requests, dict.fromkeys(requests, reply), take)

    def shares(self) -> SumStep:
        """Pass on the keys, and ask for shares that only the other clients can read."""
        requests = dict[int, Payload]()
        expected = dict[int, ExpectedReply]()
        for server in self.servers.values():
            clients = tuple(sorted(server.public)) if server.has_keys else ()
            for client in clients:
                array = public_array([server.public[other] for other in clients])
                requests[client] = write_sum_request(self._request("shares", client, clients), {"public": array})
                expected[client] = expected_arrays({"sealed": (len(clients) - 1, SEALED_BYTES)})

        def take(client: int, payload: Payload) -> None:
            others = [other for other in sorted(self._of[client].public) if other != client]
            self._of[client].take_sealed(client, by_client(read_array(payload, "sealed"), others, SEALED_BYTES))

        return SumStep(requests, expected, take)

    @property
    def without_sum(self) -> frozenset[int]:
        """The clients that are in no sum from the start, as theirs would be of too few. They work for themselves."""
        return frozenset(self.plan.cohort.tolist()) - self._of.keys() - self.left_out.keys()

    @property
    def ready(self) -> frozenset[int]:
        """The clients that can train: their shares came, and those of enough others."""
        return frozenset(client for server in self.servers.values() if server.has_shares for client in server.sealed)

    def work(self, client: int) -> Payload:
        """What a client that trains is sent beside its work: the shares of the others."""
        sealed = self._of[client].sealed_for(client)
        return write_sum_request(self._request("masked", client, tuple(sealed)), {"sealed": sealed_array(sealed)})

    def expected_work(self, client: int, expected: ExpectedReply) -> ExpectedReply:
        """What its reply may hold: a masked vector."""
        server = self._of[client]
        return with_vector(expected, server.length, server.word, len(server.members))

    def take_work(self, client: int, payload: Payload) -> None:
        """Take its masked vector in, or why there is none: it cannot open shares, or its update is not finite.

        Raises:
            InputError: When there is neither.
        """
        server = self._of[client]
        if says_not_finite(payload):
            self.not_finite.add(client)
            return
        if senders := read_bad_shares(payload):
            server.take_refusal(client, senders)
            return
        server.take_vector(client, words_of_tensor(read_array(payload, "vector"), server.word))

    @property
    def has_vectors(self) -> bool:
        """Whether each sum that has the shares it needs has the vectors that it needs, too."""
        return all(server.has_vectors for server in self.servers.values() if server.has_shares)

    @property
    def refused(self) -> dict[int, list[int]]:
        """The clients that say that they cannot open the shares of another one, by this one."""
        found = {
            sender: sorted(receivers) for each in self.servers.values() for sender, receivers in each.refused.items()
        }
        return dict(sorted(found.items()))

    @property
    def spoilers(self) -> set[int]:
        """The clients that should be left out of later sums: too many say so for all of them to be malicious."""
        return {client for server in self.servers.values() for client in server.spoilers}

    def revealed(self) -> SumStep:
        """Ask those that stayed for the shares that take the masks off the sum."""
        requests = dict[int, Payload]()
        expected = dict[int, ExpectedReply]()
        for server in self.servers.values():
            stayed = tuple(sorted(server.stayed)) if server.has_vectors else ()
            gone = tuple(server.gone)
            arrays = {"seeds": (len(stayed), SEED_SHARE_BYTES)}
            if gone:
                arrays["keys"] = (len(gone), KEY_SHARE_BYTES)
            for client in stayed:
                requests[client] = write_sum_request(self._request("revealed", client, stayed, gone))
                expected[client] = expected_arrays(arrays)

        def take(client: int, payload: Payload) -> None:
            server = self._of[client]
            seeds = by_client(read_array(payload, "seeds"), sorted(server.stayed), SEED_SHARE_BYTES)
            keys = {}
            if server.gone or "keys" in arrays_of(payload):
                keys = by_client(read_array(payload, "keys"), server.gone, KEY_SHARE_BYTES)
            server.take_shares(client, seeds, keys)

        def enough() -> bool:
            return all(server.can_open for server in self.servers.values() if server.has_vectors)

        return SumStep(requests, expected, take, enough)

    def report(self, report: Report) -> Summed:
        """The report with the means of the sums that could be opened, in place of updates."""
        here = set(report.results[TRAIN].updates.clients.tolist())
        opened = {model: OpenedSum(tuple(here.intersection(members))) for model, members in self._groups.items()}
        opened |= {model: self._opened(server) for model, server in self.servers.items()}
        return report_of_sums(self.terms, self.layout, self.plan, report, self._groups, opened)

    def _opened(self, server: SumServer) -> OpenedSum:
        clients = tuple(sorted(server.stayed))
        if not server.can_open:
            # Where vectors came and shares did not, too few gave some.
            return OpenedSum(clients if not server.has_vectors else clients[: server.givers])
        try:
            total = torch.from_numpy(signed(server.opened(), server.word))
        except InputError:
            return OpenedSum(clients)
        return OpenedSum(clients, total, sum(self.max_weights[client] for client in clients))

    def _request(self, step: str, client: int, clients: tuple[int, ...], gone: tuple[int, ...] = ()) -> SumRequest:
        server = self._of[client]
        return SumRequest(
            step=step,
            name=server.name,
            round=self.plan.round,
            client=client,
            clients=clients,
            gone=gone,
            word=server.word,
            max_weight=self.max_weights.get(client, 1),
        )
