import threading
from pathlib import Path

import pytest

from fedstrata.errors import InputError
from fedstrata.flower.alone import alone


def test_the_second_waits_until_the_first_has_left(tmp_path: Path) -> None:
    order: list[str] = []
    waits = threading.Event()

    def second() -> None:
        with alone(tmp_path / "folder", waits.set):
            order.append("second")

    thread = threading.Thread(target=second)
    with alone(tmp_path / "folder"):
        thread.start()
        assert waits.wait(60)
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]


def test_nobody_is_waited_for_where_nobody_is(tmp_path: Path) -> None:
    def never() -> None:
        raise AssertionError

    for _ in range(2):
        with alone(tmp_path, never):
            pass


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="expected a folder that can be made"), alone(tmp_path / "file" / "folder"):
        pass
