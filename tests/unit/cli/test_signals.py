"""A signal ends a command after its current work, and handlers are restored."""

import signal
import threading
from collections.abc import Iterator

import pytest

from tidelog.cli.surroundings import stopped_by_signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_the_block_to_stop(number: signal.Signals) -> None:
    before, stopped = signal.getsignal(number), threading.Event()
    with stopped_by_signals(stopped, again_ends=False):
        assert not stopped.is_set()
        for _ in range(2):
            signal.raise_signal(number)
            assert stopped.is_set()
    assert signal.getsignal(number) is before


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Install Python's handler of SIGINT, because a shell may have made this process ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_second_signal_ends_the_program() -> None:
    stopped = threading.Event()
    with stopped_by_signals(stopped, again_ends=True):
        signal.raise_signal(signal.SIGINT)
        assert stopped.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_threads_leave_signals_alone() -> None:
    handlers = []

    def run() -> None:
        with stopped_by_signals(threading.Event(), again_ends=True):
            handlers.append(signal.getsignal(signal.SIGINT))

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert handlers == [before]
