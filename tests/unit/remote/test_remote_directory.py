"""`tidelog.connect` without a broker: calls that are refused before any request."""

import inspect
import socket
from collections.abc import Callable

import pytest

import tidelog
from tidelog.errors import Closed, ClusterFailure, ConfigError, InvalidRequest
from tidelog.remote.cluster import Cluster
from tidelog.remote.remote_directory import RemoteDirectory
from tidelog.scan import ScanStats
from tidelog.types import NewRecord, TopicPartition

# Address at which no server listens; the tests send no request.
NOWHERE = "127.0.0.1:1"
PLACE = TopicPartition("t", 0)


def connect(timeout_s: float = 1.0) -> RemoteDirectory:
    return tidelog.connect(NOWHERE, timeout_s=timeout_s)


CALLS: dict[str, Callable[[RemoteDirectory], object]] = {
    "topics": lambda log: log.topics(),
    "topic": lambda log: log.topic("t"),
    "partitions": lambda log: log.partitions("t"),
    "create_topic": lambda log: log.create_topic("t"),
    "delete_topic": lambda log: log.delete_topic("t"),
    "alter_config": lambda log: log.alter_config("t", {"retention.ms": "1"}),
    "add_partitions": lambda log: log.add_partitions("t", 2),
    "delete_records": lambda log: log.delete_records({PLACE: 1}),
    "max_timestamps": lambda log: log.max_timestamps([PLACE]),
    "append": lambda log: log.append("t", [NewRecord(value=b"x")]),
    # A producer with the transactional id of `load_once` would fence the producer of the same load
    # in another process.
    "producer": lambda log: log.cluster.producer({}),
    "flush": lambda log: log.flush(),
    "offsets_for_times": lambda log: log.offsets_for_times({PLACE: 1}),
    "offsets_at": lambda log: log.offsets_at("t", 1),
    "beginning_offsets": lambda log: log.beginning_offsets([PLACE]),
    "end_offsets": lambda log: log.end_offsets([PLACE]),
    "records": lambda log: list(log.records("t")),
    "read": lambda log: log.read("t"),
    "count": lambda log: log.count("t"),
    "scan": lambda log: log.scan("t").to_arrow(),
    "table": lambda log: log.table("t").to_table(),
    "groups": lambda log: log.cluster.groups(),
    "first_records": lambda log: log.cluster.first_records({PLACE: 0}),
    "enter": lambda log: log.__enter__(),
}


@pytest.mark.parametrize(
    "bootstrap",
    [
        "",
        " ",
        ",",
        "h",
        "h:",
        ":9092",
        "h:abc",
        "h:0",
        "h:99999",
        "h:-1",
        "h:٣",
        "h:1,x:abc",
        "h:1,",
    ],
)
def test_invalid_addresses_are_refused_at_once(bootstrap: str) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap=.*give HOST:PORT"):
        tidelog.connect(bootstrap)


def test_a_silent_server_among_refusing_servers_is_reported_in_words() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        socket.create_server(("127.0.0.1", 0)) as closing,
    ):
        ports = [one.getsockname()[1] for one in (silent, closing)]
        closing.close()
        bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
        with (
            tidelog.connect(bootstrap, timeout_s=1) as remote,
            pytest.raises(ClusterFailure, match="no server responds") as failure,
        ):
            remote.topics()
    assert "_TRANSPORT" not in str(failure.value)


def test_no_server_at_all_is_refused_at_once() -> None:
    with pytest.raises(InvalidRequest, match=r"bootstrap is None \(NoneType\); give text"):
        tidelog.connect(None)  # type: ignore[arg-type] # wrong on purpose
    for good in ("h:1", "h:65535, other:9092", "[::1]:9092"):
        tidelog.connect(good).close()


@pytest.mark.parametrize("timeout_s", [0, -1, float("nan"), float("inf"), 3601, 1e9, 1e-9])
def test_times_that_cannot_be_waited_for_are_refused(timeout_s: float) -> None:
    with pytest.raises(ConfigError, match=r"timeout=.*from 0.001 to 3600 seconds"):
        connect(timeout_s)


def test_a_time_out_may_be_longer_than_that_of_a_socket() -> None:
    """The client library gets a time-out from 1 s to 300 s, the largest that it accepts.

    With less than 1 s, its errors don't contain the cause.
    """
    for timeout_s, expected_ms in ((600, 300_000), (0.5, 1_000)):
        log = connect(timeout_s)
        assert log.cluster.request_timeout_ms == expected_ms
        assert log.cluster.timeout_s == timeout_s
        log.cluster.admin()
        log.close()


def test_invalid_partitions_are_refused() -> None:
    log = connect()
    with pytest.raises(InvalidRequest, match=r"partitions is 'f' \(str\); give a TopicPartition"):
        log.end_offsets("f")  # type: ignore[arg-type] # wrong on purpose
    with pytest.raises(InvalidRequest, match="times has 'f': 1"):
        log.offsets_for_times({"f": 1})  # type: ignore[dict-item] # wrong on purpose


@pytest.mark.parametrize("name", CALLS)
def test_each_call_of_a_closed_connection_is_an_error(name: str) -> None:
    log = connect()
    log.close()
    log.close()
    with pytest.raises(Closed, match=f"the connection to {NOWHERE} is closed"):
        CALLS[name](log)
    assert log.point("0") == 0


DOORS = (tidelog.Directory, tidelog.RemoteDirectory, tidelog.AsyncRemoteDirectory)


@pytest.mark.parametrize("door", DOORS, ids=[door.__name__ for door in DOORS])
def test_help_shows_a_text_for_each_call_of_a_door(door: type) -> None:
    calls = inspect.getmembers(door, lambda one: inspect.isfunction(one) or inspect.ismethod(one))
    names = [name for name, _ in calls if not name.startswith("_")]
    assert {"topics", "offsets_at", "read", "count"} <= {*names}
    assert not [name for name in names if not inspect.getdoc(getattr(door, name))]


AWAITED = (
    *("topics", "topic", "partitions", "create_topic", "delete_topic", "alter_config"),
    *("append", "append_table", "flush", "offsets_for_times", "offsets_at"),
    *("beginning_offsets", "end_offsets", "count"),
    *("add_partitions", "delete_records", "max_timestamps"),
)


@pytest.mark.parametrize("name", AWAITED)
def test_an_awaited_call_shows_the_signature_and_the_text_of_the_call(name: str) -> None:
    call = getattr(tidelog.RemoteDirectory, name)
    awaited = getattr(tidelog.AsyncRemoteDirectory, name)
    assert inspect.signature(awaited) == inspect.signature(call)
    assert inspect.getdoc(awaited) == inspect.getdoc(call)
    assert inspect.iscoroutinefunction(inspect.unwrap(awaited))
    assert awaited.__qualname__ == f"AsyncRemoteDirectory.{name}"


def test_an_existing_topic_is_not_changed_by_other_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Cluster, "topics", lambda _cluster: {"t": 1})
    unreadable = {"log.retention.hours": "long"}
    with connect() as log:
        assert log.create_topic("t", partitions=0, config=unreadable, exist_ok=True) == []
        with pytest.raises(ConfigError):
            log.create_topic("u", config=unreadable, exist_ok=True)


def test_a_read_needs_at_least_one_thread() -> None:
    with connect() as log, pytest.raises(InvalidRequest, match="threads=0"):
        log.source.read((), ("value",), stats=ScanStats(), threads=0)
