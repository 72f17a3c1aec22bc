"""After a worker has unpickled a task, it acknowledges received data without delay.

For the socket option TCP_QUICKACK, Linux returns the mode that was last requested; 0 stands for
delayed acknowledgements.
"""

import os
import pickle  # noqa: TID251 - data of this test only
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.worlds.needs import need

from tidelog.spark import parts, tables, workers
from tidelog.spark.options import read_source_options
from tidelog.spark.source import PushdownReader, TidelogReader
from tidelog.spark.stream import TidelogStreamReader
from tidelog.spark.stream_options import read_stream_options
from tidelog.spark.workers import PromptAck, acknowledge_now

OPTIONS = {"path": "/nowhere", "subscribe": "orders"}


@pytest.fixture(autouse=True)
def quick_ack() -> None:
    need(hasattr(socket, "TCP_QUICKACK"), "TCP_QUICKACK of Linux")


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Yield a connection over loopback with delayed acknowledgements."""
    # A worker has few descriptors. This process may have further connections, which other tests
    # have opened.
    monkeypatch.setattr(workers, "_DESCRIPTORS_MAX", 100_000)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        there = stack.enter_context(socket.create_connection(listener.getsockname()))
        here, _ = listener.accept()
        stack.enter_context(here)
        there.sendall(b"the code of a task")
        assert here.recv(64)
        here.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        assert not is_prompt(here)
        yield here


def is_prompt(connection: socket.socket) -> bool:
    return bool(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))


def test_connections_of_this_process_acknowledge_at_once(lazy: socket.socket) -> None:
    assert acknowledge_now() >= 1
    assert is_prompt(lazy)


def test_other_descriptors_than_connections_are_left_alone(lazy: socket.socket) -> None:
    before = acknowledge_now()
    one, other = socket.socketpair()
    with one, other, socket.socket(type=socket.SOCK_DGRAM), Path("/dev/null").open():
        assert acknowledge_now() == before


def descriptors() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_no_descriptor_is_kept(lazy: socket.socket) -> None:
    """Other tests may change the count a little, but a leak per call would add many descriptors."""
    before, calls = descriptors(), 200
    for _ in range(calls):
        acknowledge_now()
    assert descriptors() < before + calls // 2


def test_connections_stay_blocking_despite_a_default_timeout(lazy: socket.socket) -> None:
    """A user's function may have set a default timeout for all sockets of the worker."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(30)
    try:
        assert acknowledge_now() >= 1
    finally:
        socket.setdefaulttimeout(before)
    assert os.get_blocking(lazy.fileno())


def test_without_quick_acknowledgements_no_connection_is_changed(
    lazy: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(socket, "TCP_QUICKACK")
    assert acknowledge_now() == 0


def test_without_a_list_of_descriptors_no_connection_is_changed(
    lazy: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_DESCRIPTORS", "/nowhere")
    assert acknowledge_now() == 0
    assert not is_prompt(lazy)


def readers() -> Iterator[object]:
    source = read_source_options(OPTIONS)
    yield TidelogReader(source, ("value",))
    yield PushdownReader(source, ("value",))
    yield TidelogStreamReader(read_stream_options(OPTIONS), ("value",))
    yield parts._Mapper(("one",), repr, "records bigint")  # type: ignore[arg-type] # not called
    yield tables._Reduce(("one",), None, ("value",), {})  # type: ignore[arg-type] # not called


@pytest.mark.parametrize("sent", list(readers()), ids=lambda sent: type(sent).__name__)
def test_unpickling_what_workers_receive_requests_prompt_acknowledgements(
    lazy: socket.socket, sent: object
) -> None:
    data = pickle.dumps(sent)
    assert not is_prompt(lazy)
    pickle.loads(data)
    assert is_prompt(lazy)


def test_an_unpickled_object_can_be_pickled_again(lazy: socket.socket) -> None:
    assert isinstance(
        pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(PromptAck())))), PromptAck
    )
