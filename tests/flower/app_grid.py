"""A grid of Flower's that hands messages to an app in this process."""

from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

# Flower notes in every message who sent it, and lets nobody make one without.
TaskIdentity.task_id = 1
TaskIdentity.run_id = 1
TaskIdentity.node_id = 1


class AppGrid(Grid):
    """Nodes that answer at once. Their partitions are their places, whatever their ids.

    Attributes:
        sent: The messages that were sent.
        twist: What arrives of a message and its reply; None for nothing.
    """

    def __init__(
        self,
        app: ClientApp,
        nodes: Iterable[int],
        twist: Callable[[Message, Message], Message | None] = lambda message, reply: reply,
    ) -> None:
        self.app = app
        self.partitions = {node: place for place, node in enumerate(nodes)}
        self.twist = twist
        self.sent = list[Message]()
        self._contexts = dict[int, Context]()
        self._replies = dict[str, Message]()

    @property
    def run(self) -> Any:
        """Of no use here."""
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        """Of no use here."""

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Of no use here."""
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Of no use here."""
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are there."""
        return list(self.partitions)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Let the nodes answer."""
        ids = list[str]()
        for message in messages:
            id = str(len(self.sent))
            self.sent.append(message)
            message.metadata.__dict__["_message_id"] = id
            node = message.metadata.dst_node_id
            fresh = Context(1, node, {"partition-id": self.partitions[node]}, RecordDict(), {})
            context = self._contexts.setdefault(node, fresh)
            # On a node, nobody may make a message that answers none.
            TaskIdentity._run_id = None  # type: ignore[assignment]  # which is what it is there
            try:
                answer = self.app(message, context)
            finally:
                TaskIdentity.run_id = 1
            reply = self.twist(message, answer)
            if reply is not None:
                self._replies[id] = reply
            ids.append(id)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The replies that have come."""
        return [self._replies.pop(id) for id in message_ids if id in self._replies]
