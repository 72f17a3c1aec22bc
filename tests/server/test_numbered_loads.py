"""At a broker, `load_once` and `produce --once` commit rows and their count in one transaction."""

import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest
from tests.contracts.broker_commands import Shell
from tests.worlds.waiting import PATIENCE_S

import tidelog
from tidelog.errors import InvalidRequest, InvalidTimestamp, MessageTooLarge
from tidelog.remote import numbered_loads
from tidelog.storage.log.append_types import AppendResult
from tidelog.types import NewRecord


@pytest.fixture
def log(tmp_path: Path) -> Iterator[tidelog.RemoteDirectory]:
    with (
        tidelog.broker(str(tmp_path / "data")) as broker,
        tidelog.connect(broker.bootstrap_servers) as log,
    ):
        log.create_topic("flights", partitions=2)
        yield log


def rows(count: int) -> list[NewRecord]:
    return [NewRecord(key=b"%d" % n, value=b"%d" % n) for n in range(count)]


def values(log: tidelog.RemoteDirectory) -> Counter[bytes | None]:
    found = log.records("flights", isolation="read_committed")
    return Counter(record.value for _, record in found)


def test_a_repeated_load_appends_only_new_rows(log: tidelog.RemoteDirectory) -> None:
    first = log.load_once("flights", rows(10), source="mine")
    assert (first.rows, first.skipped) == (10, 0)
    assert sum(one.rows for one in first.partitions.values()) == 10
    again = log.load_once("flights", rows(10), source="mine")
    assert (again.rows, again.skipped, again.partitions) == (0, 10, {})
    more = log.load_once("flights", rows(13), source="mine", codec="zstd")
    assert (more.rows, more.skipped) == (3, 10)
    assert values(log) == Counter(b"%d" % n for n in range(13))


def test_an_unreadable_row_ends_a_load_after_the_previous_rows(
    log: tidelog.RemoteDirectory,
) -> None:
    def broken() -> Iterator[NewRecord]:
        yield from rows(3)
        raise InvalidRequest("line 4")

    with pytest.raises(InvalidRequest, match="line 4"):
        log.load_once("flights", broken(), source="mine")
    assert log.load_once("flights", rows(5), source="mine").skipped == 3
    assert values(log) == Counter(b"%d" % n for n in range(5))


def test_the_error_on_an_unreadable_row_has_the_number_of_committed_rows(
    log: tidelog.RemoteDirectory, tmp_path: Path
) -> None:
    name = tmp_path / "rows.json"
    name.write_bytes(b'{"v": 1}\n{"v": 2}\n{')
    shell = Shell(log.bootstrap)
    code, _, err = shell.run("produce", "flights", "--from", str(name), "--once", "mine")
    assert (code, len(values(log))) == (1, 2), err
    assert "line 3: not JSON" in err
    assert err.endswith("; 2 rows before it were appended\n")


def test_the_error_of_a_broker_has_the_number_of_committed_rows(
    log: tidelog.RemoteDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numbered_loads, "ROWS_AT_ONCE", 2)
    log.alter_config("flights", {"max.message.bytes": "1000"})
    name = tmp_path / "rows.txt"
    name.write_bytes(b"1\n2\n3\n" + random.Random(1).randbytes(3000).hex().encode() + b"\n5\n")
    shell = Shell(log.bootstrap)
    load = ("produce", "flights", "--from", str(name), "--once", "mine", "--codec", "lz4")
    code, _, err = shell.run(*load)
    assert code == 1
    assert "MSG_SIZE_TOO_LARGE" in err
    assert "note: before this error, 2 rows were appended; a repeated load continues" in err
    assert values(log) == {b"1": 1, b"2": 1}
    code, _, err = shell.run(*load)
    assert "note: before this error, 0 rows were appended" in err
    assert sum(values(log).values()) == 2


def test_large_records_are_appended_up_to_the_limit_of_the_topic(
    log: tidelog.RemoteDirectory, tmp_path: Path
) -> None:
    log.alter_config("flights", {"max.message.bytes": "3000000"})
    large, larger = b"v" * 2_000_000, b"w" * 3_500_000
    many = [NewRecord(key=b"%d" % n, value=b"%d" % n) for n in range(50)]
    records = [*many, NewRecord(key=b"3", value=large), *many]
    log.append("flights", records, partition=0)
    stored = [record.value for _, record in log.records("flights")]
    assert stored == [one.value for one in records], "the order stays"
    with pytest.raises(MessageTooLarge, match="flights-0: record 1: ") as caught:
        log.append("flights", [many[0], NewRecord(value=larger)], partition=0)
    assert [one.index for one in caught.value.record_errors] == [1]
    assert log.load_once("flights", [NewRecord(value=large)], source="mine").rows == 1
    name = tmp_path / "rows.txt"
    name.write_bytes(large + b"\n")
    for extra in ((), ("--once", "other")):
        code, _, err = Shell(log.bootstrap).run("produce", "flights", "--from", str(name), *extra)
        assert code == 0, err
    assert values(log)[large] == 4


def test_after_a_limit_is_lowered_a_larger_record_is_refused_and_later_ones_are_not(
    log: tidelog.RemoteDirectory,
) -> None:
    large = [NewRecord(value=b"v" * 2_000_000)]
    log.alter_config("flights", {"max.message.bytes": "3000000"})
    log.append("flights", large, partition=0)
    log.alter_config("flights", {"max.message.bytes": "1048588"})
    for send in (partial(log.append, partition=0), partial(log.load_once, source="mine")):
        for _ in range(2):
            with pytest.raises(MessageTooLarge, match=r"^flights-\d: .*MSG_SIZE_TOO_LARGE"):
                send("flights", large)
    assert log.append("flights", rows(3), partition=0)[0].record_count == 3
    assert log.load_once("flights", rows(3), source="mine").rows == 3
    assert sum(values(log).values()) == 7


def test_a_callback_of_an_append_may_append_with_many_batch_sizes(
    log: tidelog.RemoteDirectory,
) -> None:
    later, has_appended = list[Future[dict[int, AppendResult]]](), threading.Event()

    def append_more(_: Future[dict[int, AppendResult]]) -> None:
        later.extend(log.send("flights", rows(1), batch_bytes=1000 + n) for n in range(20))
        has_appended.set()

    log.send("flights", rows(1)).add_done_callback(append_more)
    assert has_appended.wait(PATIENCE_S)
    log.flush()
    assert all(one.done() for one in later)
    assert sum(values(log).values()) == 21


def test_a_callback_of_an_append_may_append_a_large_record_and_flush(
    log: tidelog.RemoteDirectory,
) -> None:
    log.alter_config("flights", {"max.message.bytes": "3000000"})
    offsets, is_done = list[int](), threading.Event()

    def append_large(_: Future[dict[int, AppendResult]]) -> None:
        large = [NewRecord(value=b"v" * 2_000_000)]
        later = log.send("flights", large, partition=0)
        log.flush()
        assert later.done()
        offsets.append(later.result()[0].base_offset)
        is_done.set()

    small = [NewRecord(value=b"v")] * 5
    log.send("flights", small, partition=0).add_done_callback(append_large)
    assert is_done.wait(PATIENCE_S)
    assert offsets == [5]


def test_a_large_record_makes_no_batch_too_large_for_another_topic(
    log: tidelog.RemoteDirectory,
) -> None:
    log.alter_config("flights", {"max.message.bytes": "3000000"})
    log.create_topic("other")
    many = [NewRecord(value=b"v" * 100_000) for _ in range(40)]
    with tidelog.connect(log.bootstrap, config={"linger.ms": "300"}) as slow:
        slow.append("flights", [NewRecord(value=b"v" * 2_000_000)], batch_bytes=4_000_000)
        assert slow.append("other", many, batch_bytes=4_000_000)[0].record_count == 40


def test_a_record_above_the_size_of_the_queue_is_refused(log: tidelog.RemoteDirectory) -> None:
    log.alter_config("flights", {"max.message.bytes": "3000000"})
    large = NewRecord(key=b"3", value=b"v" * 2_000_000)
    config = {"queue.buffering.max.kbytes": "1000"}
    with tidelog.connect(log.bootstrap, config=config) as small:
        for send in (small.append, partial(small.load_once, source="mine")):
            with pytest.raises(MessageTooLarge, match="larger than the producer's queue"):
                send("flights", [*rows(3), large])
    assert log.loaded_rows("flights", "mine") == 0
    assert log.load_once("flights", [*rows(3), large], source="mine").rows == 4


def test_a_refused_row_aborts_its_transaction(log: tidelog.RemoteDirectory) -> None:
    bad = [*rows(3), NewRecord(value=b"x", timestamp=0)]
    with pytest.raises(InvalidTimestamp):
        log.load_once("flights", bad, source="mine")
    assert values(log) == {}
    assert log.load_once("flights", rows(5), source="mine").skipped == 0
    assert values(log) == Counter(b"%d" % n for n in range(5))


def test_fewer_rows_than_were_loaded_are_another_source(log: tidelog.RemoteDirectory) -> None:
    log.load_once("flights", rows(5), source="mine")
    with pytest.raises(
        InvalidRequest, match="already has 5 rows of source 'mine', but this input has only 2"
    ):
        log.load_once("flights", rows(2), source="mine")
    log.load_once("flights", rows(2), source="other")
    assert sum(values(log).values()) == 7


@pytest.mark.parametrize("options", [(), ("--once", "mine"), ("--codec", "gzip")])
def test_batches_fit_into_the_largest_message_of_the_topic(
    log: tidelog.RemoteDirectory, tmp_path: Path, options: tuple[str, ...]
) -> None:
    log.alter_config("flights", {"max.message.bytes": "1000"})
    lines = [random.Random(number).randbytes(40).hex() for number in range(300)]
    name = tmp_path / "rows.txt"
    name.write_text("\n".join(lines))
    shell = Shell(log.bootstrap)
    code, _, err = shell.run("produce", "flights", "--from", str(name), *options)
    assert code == 0, err
    assert values(log) == Counter(line.encode() for line in lines)
    log.alter_config("flights", {"max.message.bytes": "0"})
    code, _, err = shell.run("produce", "flights", "--from", str(name), "--codec", "gzip")
    assert code == 1
    assert "max.message.bytes" in err
