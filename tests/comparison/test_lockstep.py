import signal
from threading import Thread

import pytest

from fedstrata.comparison.lockstep import Patience


def test_the_second_ctrl_c_interrupts_at_once() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Patience() as patience:
        assert not patience.asked
        signal.raise_signal(signal.SIGINT)
        assert patience.asked
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_outside_the_main_thread_signals_are_left_alone() -> None:
    before, during = signal.getsignal(signal.SIGINT), []

    def enter() -> None:
        with Patience():
            during.append(signal.getsignal(signal.SIGINT))

    thread = Thread(target=enter)
    thread.start()
    thread.join()
    assert during == [before]
