"""Control clients change a directory that a program uses; each change is atomic."""

import threading
from pathlib import Path

import pyarrow as pa
import pytest
from tests.unit.control.test_channel import stage
from tests.worlds.waiting import PATIENCE_S, Patience, until_so

import tidelog
from tidelog.control.client import ControlClient, find_holder
from tidelog.control.server import ControlServer, TurnLock
from tidelog.errors import DirectoryLocked, InvalidRequest
from tidelog.types import NewRecord

TOPIC = "tides"


def holder(path: str) -> ControlClient:
    found = find_holder(path, timeout_s=60)
    assert found is not None
    return found


def test_attach_while_the_program_appends(tmp_path: Path) -> None:
    """The program appends while a client attaches records; no record is lost or overwritten."""
    path, attaches = str(tmp_path), 5
    with tidelog.open(path, writable=True, control=True) as directory:
        directory.create_topic(TOPIC)
        with directory.exclusive():
            staged = [stage(directory.log_dir, f"job-{n}") for n in range(attaches)]
        ended = threading.Event()

        def attach() -> None:
            with holder(path) as client:
                for number, segments in enumerate(staged):
                    client.attach(segments, commit_id=f"{number:032x}")
            ended.set()

        thread = threading.Thread(target=attach)
        thread.start()
        appended, patience = 0, Patience()
        while not ended.is_set() or not appended:
            patience.check("the client has attached its records")
            directory.append(TOPIC, [NewRecord(value=b"own")])
            appended += 1
        thread.join()
        values = [record.value for _, record in directory.records(TOPIC)]
        assert values.count(b"own") == appended
        assert values.count(b"a") == values.count(b"b") == attaches
        assert all(values[at + 1] == b"b" for at, value in enumerate(values) if value == b"a")
        table = directory.read(TOPIC).read_all()
        assert isinstance(table, pa.Table)
        assert table.num_rows == len(values)
    assert find_holder(path) is None
    with tidelog.open(path) as again:
        assert len(list(again.records(TOPIC))) == appended + 2 * attaches
        assert again.reports == []


def test_requests_wait_while_the_program_has_it_to_itself(tmp_path: Path) -> None:
    path, flushed = str(tmp_path), threading.Event()
    with tidelog.open(path, writable=True, control=True) as directory:

        def flush() -> None:
            with holder(path) as client:
                client.flush()
            flushed.set()

        thread = threading.Thread(target=flush)
        with directory.exclusive():
            thread.start()
            assert not flushed.wait(0.05)
        assert flushed.wait(60)
        thread.join()


def test_the_lock_is_still_one(tmp_path: Path) -> None:
    with (
        tidelog.open(str(tmp_path), writable=True, control=True),
        pytest.raises(DirectoryLocked),
    ):
        tidelog.open(str(tmp_path), writable=True, control=True)
    tidelog.open(str(tmp_path), writable=True, control=True).close()


def test_only_a_writable_directory_serves_a_control_channel(tmp_path: Path) -> None:
    tidelog.open(str(tmp_path), writable=True).close()
    with pytest.raises(InvalidRequest, match="writable"):
        tidelog.open(str(tmp_path), control=True)


def test_without_a_channel_exclusive_has_no_effect(tmp_path: Path) -> None:
    with tidelog.open(str(tmp_path), writable=True) as directory, directory.exclusive():
        assert find_holder(str(tmp_path)) is None


def test_a_waiting_client_gets_the_lock_next() -> None:
    """A waiting client gets the lock next, even if the holder requests it again at once."""
    lock = TurnLock()
    order: list[str] = []

    def wait_for_turn() -> None:
        with lock:
            order.append("waiting")

    thread = threading.Thread(target=wait_for_turn)
    with lock:
        thread.start()
        until_so(lock._gate.locked, "the other thread waits")
        with lock:
            order.append("inside")
    with lock:
        order.append("again")
    thread.join()
    assert order == ["inside", "waiting", "again"]


def test_closing_while_the_thread_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The channel's thread may notice the close after a request, and end before it is woken up."""
    wake = ControlServer.wake

    def wake_late(server: ControlServer) -> None:
        wake(server)
        for thread in threading.enumerate():
            if thread.name == "tidelog-control":
                thread.join(PATIENCE_S)
        wake(server)

    monkeypatch.setattr(ControlServer, "wake", wake_late)
    with tidelog.open(str(tmp_path), writable=True, control=True) as directory:
        directory.create_topic(TOPIC)
    assert find_holder(str(tmp_path)) is None
