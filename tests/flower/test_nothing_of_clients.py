"""What a server's run folder and log hold of its clients: no sample, no path, no tensor that one client has sent."""

from pathlib import Path

import in_process
import numpy as np
import pytest
from flwr.app import Message
from in_process import federation

from fedstrata.algorithms import ALGORITHMS

CANARY = "anna-doe-4711"
"""A part of the path of every device's data."""

REMEMBERED = {
    "fedclust": "the layers by which newcomers are placed",
    "hicfl": "the updates of the last rounds",
    "pacfl": "the subspaces of the classes, by which newcomers are placed",
}
"""Algorithms whose decisions need what single clients have sent, so that the checkpoint holds it, and what it is."""


def contents(folder: Path) -> bytes:
    """All bytes of all files of a folder."""
    return b"\0".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


ASKED = [name for name in ALGORITHMS if name not in ("centralized", "fedtsdp", "flis")]
"""All but those that need samples on the server."""


@pytest.mark.parametrize("name", ASKED)
def test_a_server_keeps_nothing_of_a_single_client(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / CANARY).mkdir()
    made = federation({**in_process.KEYS, "rounds": 2, "algorithm": {"name": name}}, tmp_path / CANARY)
    sent = set[bytes]()

    def note(message: Message, reply: Message) -> list[Message]:
        for group in reply.content.array_records.values():
            values = [array.numpy().ravel() for array in group.values()]
            # A tensor of few or equal numbers could be in a file by chance.
            sent.update(each.tobytes() for each in values if len(np.unique(each)) >= 8)
        return [reply]

    made.deployed(tmp_path / CANARY, note).run(tmp_path / "server")
    found = contents(tmp_path / "server")
    samples = list[bytes]()
    for device in made.devices.values():
        with np.load(device.data) as arrays:
            samples += [sample.tobytes() for sample in arrays["x"]]
    assert samples and not [sample for sample in samples if sample in found]
    out, err = capfd.readouterr()
    assert CANARY.encode() not in found and CANARY not in out + err
    assert any(each in found for each in sent) == (name in REMEMBERED)
