"""Commands with `--bootstrap`, and `tidelog.connect`, on a broker of ours."""

from collections.abc import Iterator

import pytest
from tests.commanding import Commands, Shell
from tests.connecting import Suite, fresh
from tests.server.conftest import SETTINGS
from tests.waiting import PATIENCE_S

import tidelog
from tidelog.cluster.remote_directory import RemoteDirectory
from tidelog.server.in_process import Broker
from tidelog.types import NewRecord


@pytest.fixture(scope="module")
def ours() -> Iterator[Broker]:
    # The tests' records are old: the default of a week would delete them.
    with tidelog.broker(settings=SETTINGS | {"log.retention.ms": "-1"}) as running:
        yield running


@pytest.fixture
def shell(ours: Broker) -> Shell:
    return Shell(ours.bootstrap_servers)


@pytest.fixture
def log(ours: Broker) -> Iterator[RemoteDirectory]:
    with tidelog.connect(ours.bootstrap_servers, timeout_s=PATIENCE_S) as found:
        yield found


class TestCommandsOnOurs(Commands):
    """See `Commands`."""


class TestConnectToOurs(Suite):
    """See `Suite`."""


def test_both_clocks_of_our_own_records(log: RemoteDirectory, shell: Shell) -> None:
    """Create times run backwards, append times forwards; the topic is searched by the latter."""
    name = fresh(log, tidelog_lookup_clock="append")
    now = log.point("now")
    for number in range(6):
        log.append(name, [NewRecord(value=b"%d" % number, timestamp=now - number * 1_000)])
    rows = log.read(name, columns=["offset", "timestamp", "appendTimestamp"]).read_all()
    known = [time for time in rows["appendTimestamp"].to_pylist() if time is not None]
    appended = [round(time.timestamp() * 1000) for time in known]
    assert len(appended) == 6
    assert appended == sorted(appended)
    assert now <= appended[0]
    partition = log.partitions(name)[0]

    def first(time_ms: int, clock: str) -> int | None:
        found = log.offsets_for_times({partition: time_ms}, clock=clock)[partition]
        return None if found is None else found.offset

    assert first(now - 3_500, "record") == 0
    assert first(now + 1, "record") is None
    assert first(appended[0], "append") == 0
    assert first(appended[-1] + 1, "append") is None
    read = log.read(name, start=now - 3_500, end=now - 1_500, columns=["offset"]).read_all()
    assert read["offset"].to_pylist() == [2, 3]
    want = sum(ms >= appended[3] for ms in appended)
    assert log.count(name, start=appended[3], clock="append") == want
    assert log.count(name, end=appended[0], clock="append") == 0
    shown = shell.rows("read", name, "--from", str(appended[3]), "--clock", "append")
    assert len(shown) == want
    assert [row["append_time_ms"] for row in shell.rows("read", name)] == appended
