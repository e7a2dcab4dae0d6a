import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Context, Message, RecordDict
from in_process import context_of, over_the_wire, payload_of

from fedstrata.base.errors import InputError
from fedstrata.flower import client_app
from fedstrata.flower.client_app import Device
from fedstrata.flower.grid import message_to
from fedstrata.flower.node import ROUND, answer_round
from fedstrata.flower.payload import Payload, encode

CONFIG = {"client-key": "site-0", "data": "data.npz", "state-dir": "state"}


def test_a_node_is_read_from_its_configuration() -> None:
    assert Device.of(CONFIG) == Device("site-0", Path("data.npz"), Path("state"))


@pytest.mark.parametrize("key", CONFIG)
@pytest.mark.parametrize("value", [None, "", 3])
def test_a_configuration_that_lacks_something_says_what(key: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"node configuration: expected {key} to be a text, found {value!r}"):
        Device.of({**CONFIG, key: value})


def test_a_device_loads_no_pages_and_no_statistics() -> None:
    """Every message starts a process: what it loads is what a round takes."""
    heavy = "{'scipy', 'sklearn', 'plotly', 'jinja2', 'matplotlib', 'ray'}"
    code = f"import sys, fedstrata.flower.client_app; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def reason(reply: Message) -> str:
    with pytest.raises(InputError) as refused:
        payload_of(reply)
    return str(refused.value)


EMPTY = over_the_wire(message_to(1, ROUND, encode(Payload()), 1, 10.0))


def answer(config: dict[str, Any]) -> str:
    """Why a node with a configuration does nothing about a message that asks for nothing."""
    return reason(client_app.client_app(EMPTY, Context(1, 2, config, RecordDict(), {})))


def test_what_a_device_cannot_do_is_one_line_of_its_reply(tmp_path: Path) -> None:
    device = Device("site-0", tmp_path / "data.npz", tmp_path / "state")
    found = reason(client_app.client_app(EMPTY, context_of(device)))
    assert found == "its device says: expected the record config, found none"
    assert "expected client-key to be a text" in answer({})


def test_a_state_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    config: dict[str, Any] = {**CONFIG, "state-dir": str(tmp_path / "file" / "state")}

    def nothing(payload: Payload, message: Message, context: Context) -> Any:
        return "run", None, None

    payload = answer_round(EMPTY, Context(1, 2, config, RecordDict(), {}), nothing)
    assert "expected a folder that can be made" in payload.record("failed")


def test_nothing_of_a_machine_is_in_what_its_device_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What nobody foresaw stays in the node's own log."""

    def fails(content: RecordDict) -> Payload:
        raise PermissionError(f"{tmp_path}/patients.csv")

    monkeypatch.setattr("fedstrata.flower.node.decode", fails)
    assert answer(CONFIG) == "its device says: unexpected PermissionError; the log of its node says more"
    assert "patients.csv" in caplog.text


def test_an_empty_reason_is_said_too() -> None:
    answer = over_the_wire(message_to(1, "train", encode(Payload({"failed": ""})), 1, 10.0))
    assert reason(answer) == "its device says: "
