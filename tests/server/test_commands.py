"""Commands with `--bootstrap`, and `tidelog.connect`, on our broker."""

import asyncio
import io
import json
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from tests.contracts.broker_commands import Commands, Shell
from tests.contracts.connections import Suite, fresh
from tests.worlds.brokers.running import SETTINGS, broker_fixture
from tests.worlds.waiting import PATIENCE_S, until_so

import tidelog
from tidelog.cli.app import run
from tidelog.cli.surroundings import ExitCode, Surroundings
from tidelog.errors import Closed
from tidelog.remote.remote_directory import RemoteDirectory
from tidelog.remote.view import Watermarks
from tidelog.server.embedded import Broker
from tidelog.types import Header, IsolationLevel, NewRecord, TopicPartition

# The tests' records are old: the default retention of a week would delete them.
ours = broker_fixture(SETTINGS | {"log.retention.ms": "-1"}, is_temporary=True, scope="module")


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


def test_a_row_larger_than_the_topics_limit_is_named(
    log: RemoteDirectory, shell: Shell, tmp_path: Path
) -> None:
    name, rows = fresh(log), tmp_path / "rows.txt"
    rows.write_bytes(b"1\n2\n" + b"3" * 1_020_000 + b"\n4\n")
    assert shell.run("produce", name, "--from", str(rows))[0] == 0
    rows.write_bytes(b"1\n2\n" + b"3" * 1_060_000 + b"\n4\n")
    code, _, err = shell.run("produce", name, "--from", str(rows))
    assert code == 1
    assert f"error: {rows} line 3: a batch of 1,060,0" in err
    assert "but max.message.bytes is 1,048,588" in err


@pytest.mark.parametrize("count", [1, 2])
def test_a_row_that_only_the_broker_refuses_is_named(
    log: RemoteDirectory, shell: Shell, tmp_path: Path, count: int
) -> None:
    """Only the broker checks a time close to a limit: its clock and the client's may differ."""
    name, rows = fresh(log, message_timestamp_before_max_ms="3600000"), tmp_path / "rows.csv"
    now = log.point("now")
    times = [now, now - 3_600_000 - 100_000, now]
    times += [now - 3_600_000 - 50_000] * (count - 1)
    rows.write_text("t,v\n" + "".join(f"{time_ms},x\n" for time_ms in times))
    code, _, err = shell.run("produce", name, "--from", str(rows), "--time", "t", "--value", "v")
    assert code == 1
    more = " or 1 other row with a time close to a limit" if count > 1 else ""
    assert f"error: {rows} line 3{more}: " in err
    assert "INVALID_" in err


def test_both_clocks_of_our_own_records(log: RemoteDirectory, shell: Shell) -> None:
    """Lookups search by append time even if create times decrease while append times increase."""
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


def test_a_notebook_shows_no_sizes_that_brokers_do_not_report(log: RemoteDirectory) -> None:
    name = fresh(log)
    log.append(name, [NewRecord(value=b"x")])
    shown = log.scan(name)._repr_html_()
    assert "first 1 record" in shown
    assert "0 B" not in shown + log.scan(name).plan()._repr_html_()
    assert "<tr><th>topic</th><th>partitions</th></tr>" in log._repr_html_()


def test_a_count_by_append_time_looks_all_partitions_up_at_once(
    log: RemoteDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = fresh(log, partitions=4)
    log.append(name, [NewRecord(value=b"x")], partition=1)
    look_up = log.cluster.watermarks
    asked: list[int] = []

    def watermarks(
        names: Iterable[TopicPartition],
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, Watermarks]:
        names = list(names)
        asked.append(len(names))
        return look_up(names, isolation=isolation)

    monkeypatch.setattr(log.cluster, "watermarks", watermarks)
    count = log.count(name, start="-1h", clock="append")
    assert (count, count.without_time) == (1, 0)
    assert asked == [4, 4]


def appended_ms(log: RemoteDirectory, name: str) -> list[int]:
    """Return the append times of the records, from the column of append times."""
    rows = log.read(name, columns=["appendTimestamp"]).read_all()
    return [round(row["appendTimestamp"].timestamp() * 1000) for row in rows.to_pylist()]


@pytest.mark.parametrize("exposed", ["true", "false"])
def test_records_one_by_one_tell_when_they_were_appended(
    log: RemoteDirectory, exposed: str
) -> None:
    name = fresh(log, partitions=2, tidelog_expose_append_time=exposed)
    for number in range(4):
        log.append(name, [NewRecord(value=b"x", timestamp=1_000 + number)], partition=number % 2)
    known = appended_ms(log, name)
    assert [record.append_timestamp for _, record in log.records(name)] == known

    async def work() -> list[int | None]:
        async with await tidelog.connect_async(log.bootstrap, timeout_s=PATIENCE_S) as remote:
            return [record.append_timestamp async for _, record in remote.records(name)]

    assert asyncio.run(work()) == known


def test_aborted_records_are_left_out_one_by_one(log: RemoteDirectory) -> None:
    name = fresh(log)
    for number, commit in enumerate((False, True)):
        producer = Producer(
            {"bootstrap.servers": log.bootstrap, "transactional.id": f"{name}-{number}"}
        )
        producer.init_transactions(PATIENCE_S)
        producer.begin_transaction()
        producer.produce(name, b"%d" % commit)
        if commit:
            producer.commit_transaction(PATIENCE_S)
        else:
            producer.flush(PATIENCE_S)
            producer.abort_transaction(PATIENCE_S)
    assert [record.value for _, record in log.records(name)] == [b"0", b"1"]
    committed = list(log.records(name, isolation=IsolationLevel.READ_COMMITTED))
    assert [record.value for _, record in committed] == [b"1"]


def test_with_a_setting_of_librdkafka_only_log_append_times_are_known(log: RemoteDirectory) -> None:
    """Reads through librdkafka (also with TLS or SASL) get append times only with LogAppendTime."""
    name, stamped = fresh(log), fresh(log, message_timestamp_type="LogAppendTime")
    for topic in (name, stamped):
        log.append(topic, [NewRecord(value=b"x", timestamp=1_000)])
    config = {"socket.keepalive.enable": "true"}
    with tidelog.connect(log.bootstrap, config=config, timeout_s=PATIENCE_S) as other:
        ((_, record),) = other.records(name)
        assert (record.timestamp, record.append_timestamp) == (1_000, None)
        ((_, record),) = other.records(stamped)
        assert [record.append_timestamp] == appended_ms(log, stamped)


def test_records_through_librdkafka_are_shown_without_arrow(
    log: RemoteDirectory, shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, settings = fresh(log), tmp_path / "client.properties"
    log.append(name, [NewRecord(value=b"x", timestamp=1_000)])
    settings.write_text("client.rack=a\n")
    for module in ("numpy", "pyarrow", "tidelog.remote.rows", "tidelog.scan.reader"):
        monkeypatch.setitem(sys.modules, module, None)
    options = ("--command-config", str(settings))
    assert [row["value"] for row in shell.rows("read", name, *options)] == ["x"]
    code, _, told = shell.run("read", name, "-o", "arrow", *options)
    assert (code, "pip install 'tidelog[arrow]'" in told) == (ExitCode.ERROR, True)


def test_a_connection_that_is_closed_midway_reads_no_further_partition(
    log: RemoteDirectory,
) -> None:
    name = fresh(log, partitions=2)
    for number in range(2):
        log.append(name, [NewRecord(value=b"x")], partition=number)
    with tidelog.connect(log.bootstrap, timeout_s=PATIENCE_S) as other:
        records = other.records(name)
        next(records)
    with pytest.raises(Closed):
        next(records)


def test_a_follower_prints_the_rows_of_a_read(log: RemoteDirectory, shell: Shell) -> None:
    name = fresh(log, partitions=2)
    log.append(name, [NewRecord(value=b"there", timestamp=1_000)], partition=0)
    out = io.StringIO()
    surroundings = Surroundings(stdout=out, stderr=io.StringIO(), variables={})
    asked = ["read", name, "--follow", "--limit", "5", "-o", "json", "--bootstrap", log.bootstrap]
    follower = threading.Thread(target=run, args=(asked, surroundings))
    follower.start()
    until_so(lambda: out.getvalue().count("\n") == 1)
    for number in range(4):
        record = NewRecord(value=b"comes", timestamp=1_000, headers=(Header("h", b"x"),))
        log.append(name, [record], partition=number % 2)
    follower.join(PATIENCE_S)
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    told = {(row["partition"], row["offset"]): row for row in rows}
    want = shell.rows("read", name)
    assert told == {(row["partition"], row["offset"]): row for row in want}
    assert len(told) == 5
    assert None not in [row["append_time_ms"] for row in rows]
    assert sum(row["headers"] == [["h", "x"]] for row in rows) == 4


@pytest.mark.parametrize("commits", [True, False])
def test_a_follower_ends_at_a_final_transaction_marker(
    log: RemoteDirectory, *, commits: bool
) -> None:
    """The range ends with a transaction marker, so no record shows that the end is reached."""
    name = fresh(log)
    log.append(name, [NewRecord(value=b"there")])
    out = io.StringIO()
    surroundings = Surroundings(stdout=out, stderr=io.StringIO(), variables={})
    place = ("--bootstrap", log.bootstrap)
    arguments = ["read", name, "--follow", "--offset", "..3", "-o", "json", *place]
    follower = threading.Thread(target=run, args=(arguments, surroundings), daemon=True)
    follower.start()
    until_so(lambda: out.getvalue().count("\n") == 1)
    producer = Producer({"bootstrap.servers": log.bootstrap, "transactional.id": name})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(name, b"comes")
    if commits:
        producer.commit_transaction(PATIENCE_S)
    else:
        producer.flush(PATIENCE_S)
        producer.abort_transaction(PATIENCE_S)
    follower.join(PATIENCE_S)
    assert not follower.is_alive()
    assert [json.loads(line)["offset"] for line in out.getvalue().splitlines()] == [0, 1]
