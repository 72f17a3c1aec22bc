"""The control channel between a holder and its clients, over a real socket in one process."""

import json
import os
import socket
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.worlds.waiting import PATIENCE_S, Patience

from tidelog.control import channel, verbs
from tidelog.control.channel import CONNECTIONS_MAX, FRAME_BYTES_MAX, ControlFailure, encode_frame
from tidelog.control.client import ControlClient, find_holder
from tidelog.control.server import ControlServer
from tidelog.errors import CorruptMessage, InvalidRequest, TidelogError, UnknownTopic
from tidelog.record.builder import build_batch
from tidelog.storage.directory.attach import WriterVersion
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.directory.staging import (
    RowFacts,
    StagedSegment,
    StagedWriter,
    staging_path,
)
from tidelog.storage.open_files import FilePool
from tidelog.storage.tier_manager.mover import MoveOptions
from tidelog.types import NewRecord, TopicPartition

TOPIC = "tides"
COMMIT_ID = "0" * 32
RESPONSES_MAX = 100_000


@pytest.fixture
def log_dir(tmp_path: Path) -> Iterator[LogDir]:
    with LogDir.open(str(tmp_path), options=LogDirOptions(create=True)) as found:
        found.create_topic(TOPIC)
        yield found


@pytest.fixture
def server(log_dir: LogDir) -> Iterator[ControlServer]:
    found = ControlServer.open(log_dir)
    yield found
    found.close()


class Asking:
    """Sends each request from a new thread, while the test's thread runs the holder's loop."""

    def __init__(self, server: ControlServer, path: str) -> None:
        self._server = server
        self._path = path

    def __call__(
        self, verb: str = "status", arguments: dict[str, object] | None = None
    ) -> dict[str, object]:
        found: list[object] = []

        def ask() -> None:
            try:
                with self.client() as client:
                    found.append(client.call(verb, arguments or {}))
            except TidelogError as error:
                found.append(error)

        thread = threading.Thread(target=ask)
        thread.start()
        self.serve(lambda: bool(found))
        thread.join()
        if isinstance(found[0], TidelogError):
            raise found[0]
        assert isinstance(found[0], dict)
        return found[0]

    def client(self) -> ControlClient:
        client = find_holder(self._path, timeout_s=PATIENCE_S)
        assert client is not None
        return client

    def serve(self, is_over: "Callable[[], bool]") -> None:
        patience = Patience()
        while not is_over():
            patience.check("the client has its response")
            self._server.wait(0.05)
            self._server.run_pending()


@pytest.fixture
def ask(server: ControlServer, log_dir: LogDir) -> Asking:
    return Asking(server, log_dir.path)


def stage(log_dir: LogDir, name: str = "job-0") -> list[StagedSegment]:
    config = log_dir.topic(TOPIC).config
    pool = FilePool(log_dir.env.files)
    writer = StagedWriter(pool, log_dir.path, TopicPartition(TOPIC, 0), config, name=name)
    batch = build_batch([NewRecord(value=b"a", timestamp=5), NewRecord(value=b"b", timestamp=6)])
    writer.append([batch], RowFacts(min_timestamp=5, has_null_key=True))
    staged = writer.finish(log_dir.env.clock.now_ms())
    pool.close()
    return staged


def test_status(ask: Asking, log_dir: LogDir) -> None:
    assert ask() == {
        "path": log_dir.path,
        "pid": os.getpid(),
        "verbs": ["status", "flush", "accept_clock", "attach", "swap", "erase"],
    }


def test_only_its_owner_may_use_the_socket(server: ControlServer, log_dir: LogDir) -> None:
    found = Path(log_dir.path, channel.SOCKET_FILE).stat()
    assert stat.S_ISSOCK(found.st_mode)
    assert stat.S_IMODE(found.st_mode) == 0o600


def test_the_socket_is_removed_when_the_holder_closes(log_dir: LogDir) -> None:
    server = ControlServer.open(log_dir)
    server.close()
    assert not Path(log_dir.path, channel.SOCKET_FILE).exists()
    assert find_holder(log_dir.path) is None


def test_a_socket_of_a_dead_holder_is_replaced(log_dir: LogDir) -> None:
    left = socket.socket(socket.AF_UNIX)
    left.bind(f"{log_dir.path}/{channel.SOCKET_FILE}")
    left.close()
    assert find_holder(log_dir.path) is None
    server = ControlServer.open(log_dir)
    Asking(server, log_dir.path)()
    server.close()


def test_a_channel_works_in_a_directory_of_any_depth(tmp_path: Path) -> None:
    path = str(tmp_path / ("d" * 100) / ("e" * 100))
    with LogDir.open(path, options=LogDirOptions(create=True)) as log_dir:
        server = ControlServer.open(log_dir)
        assert Asking(server, path)()["path"] == path
        server.close()
    assert find_holder(path) is None


def test_a_path_that_is_too_long_where_there_is_no_way_around(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "_DESCRIPTORS", "/nowhere")
    with pytest.raises(InvalidRequest, match="at most 103"):
        find_holder(str(tmp_path / ("d" * 100)))


def test_attach(ask: Asking, log_dir: LogDir) -> None:
    arguments = {
        "segments": [verbs.encode_segment(segment) for segment in stage(log_dir)],
        "commit_id": COMMIT_ID,
        "writer": verbs.encode_version(WriterVersion("query/a", 3)),
    }
    done = verbs.read_attached(ask("attach", arguments))
    assert (done.record_count, done.was_done) == (2, False)
    attached = done.partitions[TopicPartition(TOPIC, 0)]
    assert (attached.first_offset, attached.end_offset) == (0, 2)
    assert [record.value for record in log_dir.log(TOPIC, 0).records()] == [b"a", b"b"]
    again = verbs.read_attached(ask("attach", arguments))
    assert again.was_done
    assert log_dir.log(TOPIC, 0).log_end_offset == 2


def test_swap(ask: Asking, log_dir: LogDir) -> None:
    """Two finished segments are replaced by one."""
    log = log_dir.log(TOPIC, 0)
    for number in range(2):
        log.append([NewRecord(value=b"%d" % number, timestamp=number)])
        log.roll()
    data = b"".join(bytes(batch.view) for part in log.slices() for _, batch in part.batches())
    path = staging_path(log_dir.path, TopicPartition(TOPIC, 0), "one")
    Path(path).write_bytes(data)
    arguments = {
        "topic": TOPIC,
        "partition": 0,
        "bases": [0, 1],
        "segments": [{"name": "one", "base_offset": 0, "size_bytes": len(data)}],
        "commit_id": COMMIT_ID,
    }
    done = ask("swap", arguments)
    assert (done["segments_before"], done["segments_after"]) == (2, 1)
    assert [record.value for record in log.records()] == [b"0", b"1"]
    assert [segment.base_offset for segment in log.segments] == [0, 2]
    with pytest.raises(InvalidRequest, match="are not consecutive finished segments"):
        ask("swap", arguments)


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "../tides"},
        {"partition": "0"},
        {"bases": [True]},
        {"bases": 5},
        {"segments": 5},
        {"segments": [{"name": "../x", "base_offset": 0, "size_bytes": 1}]},
        {"segments": [{"name": "x", "base_offset": -1, "size_bytes": 1}]},
        {"segments": [{"name": "x"}]},
        {"commit_id": None},
    ],
)
def test_a_swap_with_invalid_arguments_is_refused(ask: Asking, change: dict[str, object]) -> None:
    arguments: dict[str, object] = {
        "topic": TOPIC,
        "partition": 0,
        "bases": [0],
        "segments": [],
        "commit_id": COMMIT_ID,
    }
    with pytest.raises(CorruptMessage):
        ask("swap", arguments | change)


def test_topics_whose_names_begin_with_underscores(ask: Asking, log_dir: LogDir) -> None:
    segment = verbs.encode_segment(stage(log_dir)[0]) | {"topic": "__tides"}
    with pytest.raises(UnknownTopic):
        ask("attach", {"segments": [segment], "commit_id": COMMIT_ID, "writer": None})


def test_flush(ask: Asking, log_dir: LogDir) -> None:
    log = log_dir.log(TOPIC, 0)
    log.append([NewRecord(value=b"a")])
    assert log.recovery_point == 0
    assert ask("flush") == {}
    assert log.recovery_point == 1


def test_errors_keep_their_types(ask: Asking, log_dir: LogDir) -> None:
    segment = verbs.encode_segment(stage(log_dir)[0]) | {"topic": "tide"}
    with pytest.raises(UnknownTopic, match="tides"):
        ask("attach", {"segments": [segment], "commit_id": COMMIT_ID, "writer": None})
    with pytest.raises(InvalidRequest, match="known verbs: status, flush, accept_clock, attach"):
        ask("sing")


@pytest.mark.parametrize(
    "change",
    [
        {"topic": "../tides"},
        {"name": "../job"},
        {"name": "/etc/passwd"},
        {"name": ""},
        {"partition": -1},
        {"partition": True},
        {"order": ["1"]},
        {"order": 5},
        {"record_count": 1.5},
        {"has_null_key": 1},
        {"more": 1},
    ],
)
def test_arguments_that_could_lead_elsewhere(
    ask: Asking, log_dir: LogDir, change: dict[str, object]
) -> None:
    segment = verbs.encode_segment(stage(log_dir)[0]) | change
    with pytest.raises(CorruptMessage):
        ask("attach", {"segments": [segment], "commit_id": COMMIT_ID, "writer": None})
    assert log_dir.log(TOPIC, 0).log_end_offset == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"segments": 5},
        {"segments": [], "commit_id": "../x"},
        {"segments": [], "commit_id": COMMIT_ID, "writer": "a"},
        {"segments": [], "commit_id": COMMIT_ID, "writer": ["a", "1"]},
        {"segments": [], "commit_id": COMMIT_ID, "writer": ["a", True]},
    ],
)
def test_attach_without_a_needed_argument_is_refused(
    ask: Asking, arguments: dict[str, object]
) -> None:
    with pytest.raises(CorruptMessage):
        ask("attach", arguments)


def raw(server: ControlServer, path: str) -> socket.socket:
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(PATIENCE_S)
    with channel.address(path) as address:
        link.connect(address)
    server.wait(1.0)
    return link


@pytest.mark.parametrize(
    "data", [struct.pack(">I", FRAME_BYTES_MAX + 1), struct.pack(">I", 2) + b"[]"]
)
def test_invalid_bytes_end_only_their_connection(
    server: ControlServer, ask: Asking, log_dir: LogDir, data: bytes
) -> None:
    link = raw(server, log_dir.path)
    link.sendall(data)
    server.wait(1.0)
    assert link.recv(1) == b""
    link.close()
    assert ask()["pid"] == os.getpid()


def test_another_version_gets_an_unsupported_version_error(
    server: ControlServer, log_dir: LogDir
) -> None:
    link = raw(server, log_dir.path)
    link.sendall(encode_frame({"version": 2, "verb": "status", "arguments": {}}))
    server.wait(1.0)
    assert server.pending() == 1
    assert server.run_pending() == 1
    answer = json.loads(link.recv(1 << 16)[4:])
    assert answer["error"]["type"] == "UnsupportedVersion"
    link.close()


def test_silent_connections_do_not_exclude_other_clients(
    server: ControlServer, ask: Asking, log_dir: LogDir
) -> None:
    silent = [raw(server, log_dir.path) for _ in range(CONNECTIONS_MAX + 3)]
    assert ask()["pid"] == os.getpid()
    for link in silent:
        link.close()


def test_input_from_a_connection_that_is_being_dropped_is_harmless(
    server: ControlServer, ask: Asking, log_dir: LogDir
) -> None:
    silent = [raw(server, log_dir.path) for _ in range(CONNECTIONS_MAX)]
    late = socket.socket(socket.AF_UNIX)
    with channel.address(log_dir.path) as address:
        late.connect(address)
    silent[0].sendall(b"x")  # the holder's poll returns the listener, then silent[0]
    server.wait(1.0)
    assert ask()["pid"] == os.getpid()
    for link in (late, *silent):
        link.close()


def test_requests_of_one_connection_are_processed_one_by_one(
    server: ControlServer, log_dir: LogDir
) -> None:
    link = raw(server, log_dir.path)
    link.sendall(encode_frame(channel.request("status", {})) * 3)
    counts = []
    for _ in range(6):
        server.wait(0.1)
        counts.append(server.run_pending())
    assert counts == [1, 1, 1, 0, 0, 0]
    link.close()


def test_a_client_that_leaves_before_its_response_is_harmless(
    server: ControlServer, ask: Asking, log_dir: LogDir
) -> None:
    link = raw(server, log_dir.path)
    link.sendall(encode_frame(channel.request("status", {})))
    server.wait(1.0)
    link.close()
    assert server.run_pending() == 1
    assert ask()["pid"] == os.getpid()


def test_responses_that_wait_when_the_holder_closes_are_still_sent(
    server: ControlServer, log_dir: LogDir
) -> None:
    """Without the responses, clients would not know whether their requests were carried out."""
    link, asked = raw(server, log_dir.path), encode_frame(channel.request("status", {}))
    count = -1
    ran = 1
    while ran:  # until the socket accepts no more responses
        count += 1
        assert count < RESPONSES_MAX
        link.sendall(asked)
        server.wait(0.1)
        ran = server.run_pending()
    received = bytearray()

    def receive() -> None:
        with suppress(ConnectionResetError):  # the holder never reads the last request
            while data := link.recv(1 << 16):
                received.extend(data)

    thread = threading.Thread(target=receive)
    thread.start()
    server.retire(PATIENCE_S)
    server.close()
    thread.join()
    link.close()
    assert received.count(b'"pid"') == count


def test_a_holder_that_closes_without_a_response_is_a_control_failure(
    server: ControlServer, log_dir: LogDir
) -> None:
    client = find_holder(log_dir.path)
    assert client is not None
    server.wait(1.0)
    server.close()
    with pytest.raises(ControlFailure, match="did not respond to flush"), client:
        client.flush()


def test_wake(server: ControlServer) -> None:
    threading.Timer(0.01, server.wake).start()
    assert server.wait(None) == 0


def test_arguments_of_a_move_are_decoded_as_encoded() -> None:
    name, given = TopicPartition(TOPIC, 0), MoveOptions(url="file:///store", takes_over=True)
    read, options = verbs.read_tier_arguments(verbs.tier_arguments(name, given), print)
    assert (read, options) == (name, replace(given, on_copied=print))
