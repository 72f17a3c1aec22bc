"""Arguments of public calls: accepted forms, and typed errors for all other values.

Type hints name one form of each argument. Calls with other forms, or with wrong values, need
`type: ignore`.
"""

import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from tests.worlds.command_line import NOW, Cli

import tidelog
from tidelog import errors
from tidelog.arguments import reads_arguments
from tidelog.errors import (
    ConfigError,
    InvalidRecord,
    InvalidRequest,
    InvalidTime,
    TidelogError,
    TopicExists,
)
from tidelog.types import ArrowStream, Header, NewRecord, TopicPartition

TIME = datetime.fromtimestamp(NOW / 1000, UTC)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[tidelog.Directory]:
    cli = Cli(tmp_path / "data")
    with tidelog.open(tmp_path / "data", writable=True, env=cli.env) as log:
        log.create_topic("flights", config={"retention.ms": -1})  # type: ignore[dict-item]
        yield log


def values(log: tidelog.Directory) -> list[bytes | None]:
    return [record.value for _, record in log.records("flights")]


def test_every_call_with_a_path_as_text_accepts_a_path_object(tmp_path: Path) -> None:
    with tidelog.Directory.open(tmp_path / "a", writable=True) as log:
        log.create_topic("flights")
    with tidelog.open(tmp_path / "a") as log:
        assert log.path == str(tmp_path / "a")
    table = tidelog.table(tmp_path / "a", "flights")  # type: ignore[arg-type]
    assert table.to_table().num_rows == 0
    from tidelog.spark.places import as_place

    assert as_place(tmp_path / "a").address == str(tmp_path / "a")


@pytest.mark.parametrize("wrong", [None, 5, "", b"data", ["a"]])
def test_an_invalid_path_is_refused(wrong: object) -> None:
    with pytest.raises(InvalidRequest, match=r"path is .*; give a path"):
        tidelog.open(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", ["abc", 5, b"abc"])
def test_an_invalid_topic_id_is_refused(log: tidelog.Directory, wrong: object) -> None:
    with pytest.raises(InvalidRequest, match=r"topic_id is .*; give a UUID"):
        log.create_topic("t", topic_id=wrong)  # type: ignore[arg-type]
    log.create_topic("t", topic_id=str(UUID(int=7)))  # type: ignore[arg-type]
    assert log.topic("t").topic_id == UUID(int=7)


def test_a_setting_of_a_new_topic_has_a_value(log: tidelog.Directory) -> None:
    with pytest.raises(
        ConfigError,
        match=r"retention\.ms=None: must be text; leave the setting out for its default",
    ):
        log.create_topic("t", config={"retention.ms": None})  # type: ignore[dict-item]
    assert log.topics().keys() == {"flights"}
    log.alter_config("flights", {"retention.ms": None})


HEADERS = (Header("a", b"1"), Header("b", None))


@pytest.mark.parametrize(
    "headers",
    [
        HEADERS,
        list(HEADERS),
        [("a", b"1"), ("b", None)],
        {"a": "1", "b": None},
        [["a", "1"], ("b", None)],
    ],
)
def test_headers_in_the_forms_of_kafkas_clients(headers: object) -> None:
    assert NewRecord(headers=headers).headers == HEADERS  # type: ignore[arg-type]


def test_a_record_of_texts_and_a_datetime() -> None:
    record = NewRecord(key="k", value="é", timestamp=TIME)  # type: ignore[arg-type]
    assert record == NewRecord(key=b"k", value="é".encode(), timestamp=NOW)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"key": 5}, "key is int; give bytes, text or None"),
        ({"value": {"a": 1}}, "value is dict; give bytes, text or None"),
        ({"value": "\ud800"}, "value can't be encoded as UTF-8"),
        ({"timestamp": "2013-02-08"}, r"timestamp is '2013-02-08' \(str\); give ms since 1970"),
        ({"timestamp": 1.5}, r"timestamp is 1.5 \(float\)"),
        ({"timestamp": True}, r"timestamp is True \(bool\)"),
        ({"timestamp": datetime(2013, 2, 8)}, "timestamp has no time zone"),  # noqa: DTZ001 - the case
        ({"headers": "a"}, r"headers 'a'; give Header\(key, value\), pairs"),
        ({"headers": 5}, "headers 5; give"),
        ({"headers": [("a",)]}, "give Header"),
        ({"headers": {5: b"x"}}, "the name of header 5 is int; give text"),
        ({"headers": {"a": 5}}, "the value of header 'a' is int; give bytes"),
    ],
)
def test_a_record_names_the_argument_that_is_wrong(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        NewRecord(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (b"v", [b"v"]),
        ("v", [b"v"]),
        (NewRecord(value=b"v"), [b"v"]),
        ({"value": "v", "headers": {"a": "1"}}, [b"v"]),
        ([b"v", "w", {"value": b"x"}, NewRecord(value=b"y")], [b"v", b"w", b"x", b"y"]),
        (iter([b"v", b"w"]), [b"v", b"w"]),
    ],
)
def test_records_in_clear_forms(
    log: tidelog.Directory, records: object, expected: list[bytes]
) -> None:
    log.append("flights", records)  # type: ignore[arg-type]
    assert values(log) == expected


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (5, "records is 5 .int.; give NewRecords, dicts"),
        ([5], "records: 5 is int; give NewRecords"),
        ([{"valuex": b"x"}], "records: a record has no 'valuex'; give"),
        ([("k", "v")], "is tuple; give NewRecords"),
        (None, "records must not be None"),
    ],
)
def test_records_that_are_none_are_refused(
    log: tidelog.Directory, records: object, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        log.append("flights", records)  # type: ignore[arg-type]
    assert values(log) == []


def test_records_that_were_read_can_be_appended(log: tidelog.Directory) -> None:
    log.append("flights", b"v")  # type: ignore[arg-type]
    log.append("flights", [record for _, record in log.records("flights")])  # type: ignore[misc]
    assert values(log) == [b"v", b"v"]


def test_frames_and_readers_are_tables(log: tidelog.Directory) -> None:
    table = pa.table({"key": ["k"], "value": ["v"], "timestamp": pa.array([TIME])})
    forms: list[ArrowStream] = [
        table,
        table.to_batches()[0],
        table.to_reader(),
        pl.from_arrow(table),
        pd.DataFrame({"key": ["k"], "value": ["v"], "timestamp": [TIME]}, index=[7]),
    ]
    for form in forms:
        log.append_table("flights", form)
    found = [(one.key, one.value, one.timestamp) for _, one in log.records("flights")]
    assert found == [(b"k", b"v", NOW)] * len(forms)


def test_frames_of_polars_are_distributed_to_all_partitions(log: tidelog.Directory) -> None:
    log.create_topic("wide", partitions=3)
    headers = [[{"key": "h", "value": b"v"}], []]
    frame = pl.DataFrame({"key": ["a", "c"], "value": [b"x", None], "headers": headers})
    log.append_table("wide", frame)
    rows = {one.key: (one.value, one.headers) for _, one in log.records("wide")}
    assert rows == {b"a": (b"x", (Header("h", b"v"),)), b"c": (None, ())}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"partition": ["x"]}, "column 'partition' is string, must be int32"),
        ({"partition": [0.5]}, "column 'partition' is double, must be int32"),
        ({"partition": [2**40]}, "column 'partition': Integer value 1099511627776 not in range"),
        ({"key": [1]}, "column 'key' is int64, must be binary or string"),
        ({"value": [1]}, "column 'value' is int64, must be binary or string"),
        ({"value": [["x"]]}, "column 'value' is list<item: string>, must be binary or string"),
    ],
)
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_table_with_a_column_of_another_type_is_refused(
    log: tidelog.Directory, columns: dict[str, list[object]], message: str, partitions: int
) -> None:
    log.create_topic("typed", partitions=partitions)
    with pytest.raises(InvalidRequest, match=re.escape(message)):
        log.append_table("typed", pa.table(columns))
    assert log.count("typed") == 0


def test_a_table_with_a_column_twice_is_refused(log: tidelog.Directory) -> None:
    twice = pa.Table.from_arrays([pa.array([b"x"])] * 2, names=["value", "value"])
    with pytest.raises(InvalidRequest, match=r"more than one column has this name: value$"):
        log.append_table("flights", twice)


PARTITION = TopicPartition("flights", 0)


@pytest.mark.parametrize("form", [PARTITION, [PARTITION], ("flights", 0), (("flights", 0),)])
def test_partitions_are_taken_as_such_and_as_pairs(log: tidelog.Directory, form: object) -> None:
    log.append("flights", b"v")  # type: ignore[arg-type]
    assert log.end_offsets(form) == {PARTITION: 1}  # type: ignore[arg-type]
    assert log.scan(form).count() == 1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "form", [5, 1.5, None, "flights", b"x", {"flights": 0}, [5], ["x"], (1, 2)]
)
def test_invalid_partitions_are_refused(log: tidelog.Directory, form: object) -> None:
    message = r"partitions is .*; give a TopicPartition\(topic, number\), or a list of these"
    for ask in (log.beginning_offsets, log.end_offsets):
        with pytest.raises(InvalidRequest, match=message):
            ask(form)  # type: ignore[arg-type]
    with pytest.raises(
        InvalidRequest, match=r"times .*(give a dict from TopicPartition|must not be None)"
    ):
        log.offsets_for_times(form)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"partition is .*; give a TopicPartition\("):
        log.without_append_time(form)  # type: ignore[arg-type]


@pytest.mark.parametrize("form", [5, 1.5, b"x", {"flights": 0}, object()])
def test_an_invalid_topic_argument_is_refused(log: tidelog.Directory, form: object) -> None:
    with pytest.raises(InvalidRequest, match=r"topics is .*; give a topic's name or a TopicPart"):
        log.scan(form)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=r"topic is .*; give a topic's name or a TopicPart"):
        log.table(form)  # type: ignore[arg-type]


def test_times_by_partition_are_ms_or_datetimes(log: tidelog.Directory) -> None:
    log.append("flights", [NewRecord(value=b"v", timestamp=NOW)])
    for when in (NOW, TIME):
        (found,) = log.offsets_for_times({PARTITION: when}).values()  # type: ignore[dict-item]
        assert found is not None
        assert found.timestamp == NOW
    with pytest.raises(InvalidTime, match="is negative"):
        log.offsets_for_times({PARTITION: -1})


@pytest.mark.parametrize("number", [-1, 2**31, 2**70, -(2**70), 2**2_000, "0", 0.5, True])
def test_an_invalid_partition_number_is_refused(log: tidelog.Directory, number: object) -> None:
    wrong = TopicPartition("flights", number)  # type: ignore[arg-type]
    calls: list[Callable[[], object]] = [
        lambda: log.end_offsets([wrong]),
        lambda: log.scan(wrong),
        lambda: log.scan([wrong]),
        lambda: log.offsets_for_times({wrong: NOW}),
        lambda: log.without_append_time(wrong),
    ]
    for call in calls:
        with pytest.raises(
            InvalidRequest, match=r"has partition .* of topic 'flights'; give a num"
        ):
            call()


@pytest.mark.parametrize("size", [2**31, 2**40, 2**63 - 1])
def test_a_large_batch_takes_no_more_memory_than_its_records(
    log: tidelog.Directory, size: int
) -> None:
    log.append_table("flights", pa.table({"value": ["a" * 600_000, "b"]}), batch_bytes=size)
    log.append("flights", b"c", batch_bytes=size)  # type: ignore[arg-type]
    assert [value and value[:1] for value in values(log)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_has_a_byte_at_least(log: tidelog.Directory, size: int) -> None:
    for append in (log.append, log.append_table):
        records = pa.table({"value": ["a"]}) if append == log.append_table else [NewRecord()]
        with pytest.raises(InvalidRequest, match=f"batch_bytes .* got {size}"):
            append("flights", records, batch_bytes=size)  # type: ignore[arg-type]
    assert values(log) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda log: log.point(None),
        lambda log: log.offsets_at("flights", None),
        lambda log: log.diff("flights", None),
        lambda log: log.alter_config("flights", None),
        lambda log: log.append("flights", None),
    ],
)
def test_required_arguments_must_not_be_none(
    log: tidelog.Directory, call: Callable[[tidelog.Directory], object]
) -> None:
    with pytest.raises(InvalidRequest, match=r"(when|before|changes|records) must not be None"):
        call(log)


@pytest.mark.parametrize("form", [5, "x", None, [{"value": b"x"}]])
def test_an_invalid_table_is_refused(log: tidelog.Directory, form: object) -> None:
    with pytest.raises(InvalidRequest, match=r"table is .*; give an Arrow table, batch or reader"):
        log.append_table("flights", form)  # type: ignore[arg-type]


def test_streams_and_frames_have_the_declared_type_of_a_table(log: tidelog.Directory) -> None:
    table = pa.table({"value": ["v"]})
    forms: list[ArrowStream] = [table, table.to_batches()[0], table.to_reader()]
    forms += [pd.DataFrame({"value": ["v"]}), log.scan("flights", columns=["value"])]
    for form in forms:
        log.append_table("flights", form)
    assert log.count("flights") == 8  # 4 records, and 4 from the scan


def test_times_as_text_numbers_and_datetimes(log: tidelog.Directory) -> None:
    log.append("flights", [NewRecord(value=b"v", timestamp=NOW - 1_000)])
    for start in (NOW - 1_000, "-1s", TIME - timedelta(seconds=1), "2023-11-14T22:13:19Z"):
        assert log.count("flights", start=start) == 1  # type: ignore[arg-type]
        assert log.count("flights", end=start) == 0  # type: ignore[arg-type]
        assert log.scan("flights", start=start).count() == 1  # type: ignore[arg-type]
        assert log.read("flights", start=start).read_all().num_rows == 1  # type: ignore[arg-type]
        (found,) = log.offsets_at("flights", start).values()  # type: ignore[arg-type]
        assert found is not None
        assert found.offset == 0
    later = TIME - timedelta(seconds=1) + timedelta(microseconds=1)
    assert log.count("flights", start=later) == 0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "kind", "message"),
    [
        (1.5, InvalidRequest, "start is 1.5 .float.; give ms since 1970, a datetime"),
        (True, InvalidRequest, "start is True .bool."),
        (b"now", InvalidRequest, "start is b'now' .bytes."),
        (datetime(2013, 2, 8), InvalidTime, "start has no time zone"),  # noqa: DTZ001 - the case
        (-5, InvalidTime, "start is negative"),
        ("soon", InvalidTime, "not a time"),
    ],
)
def test_times_that_are_none_name_the_argument(
    log: tidelog.Directory, given: object, kind: type[TidelogError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        log.count("flights", start=given)  # type: ignore[arg-type]


@pytest.mark.parametrize("during", ["-6h", "-6h..now", "-6h..", "P1D", "6 hours ago"])
def test_the_last_hours_are_a_range(log: tidelog.Directory, during: str) -> None:
    log.append("flights", [NewRecord(value=b"v", timestamp=NOW - ms) for ms in (1, 90_000_000)])
    assert log.scan("flights", during=during).count() == 1


def test_a_new_record_is_in_the_last_hours(log: tidelog.Directory) -> None:
    log.append("flights", b"v")  # type: ignore[arg-type]
    assert log.scan("flights", during="-6h").count() == 1


def test_one_column_as_text(log: tidelog.Directory) -> None:
    log.append("flights", b"v")  # type: ignore[arg-type]
    assert log.scan("flights", columns="value").to_table().column_names == ["value"]
    assert log.read("flights", columns="value").read_all().column_names == ["value"]
    assert log.table("flights", columns="value").schema.names == ["value"]
    with pytest.raises(InvalidRequest, match="no column 'valuex'"):
        log.scan("flights", columns="valuex").to_table()
    with pytest.raises(InvalidRequest, match="columns is 5; give names of columns"):
        log.scan("flights", columns=5)  # type: ignore[arg-type]


def test_settings_as_numbers_flags_and_lists(log: tidelog.Directory) -> None:
    config = {
        "retention.ms": 5_000,
        "tidelog.append.time.enable": False,
        "cleanup.policy": ["compact", "delete"],
    }
    log.create_topic("typed", config=config)  # type: ignore[arg-type]
    given = log.topic("typed").given
    assert given["retention.ms"] == "5000"
    assert given["tidelog.append.time.enable"] == "false"
    assert given["cleanup.policy"] == "compact,delete"
    log.alter_config("typed", {"retention.ms": 7, "cleanup.policy": None})  # type: ignore[dict-item]
    assert log.topic("typed").given["retention.ms"] == "7"
    with pytest.raises(ConfigError, match=r"retention\.ms"):
        log.alter_config("typed", {"retention.ms": object()})  # type: ignore[dict-item]
    with pytest.raises(InvalidRequest, match="config is 5; give a dict"):
        log.create_topic("other", config=5)  # type: ignore[arg-type]


def test_an_existing_topic_may_be_created_with_exist_ok(log: tidelog.Directory) -> None:
    with pytest.raises(TopicExists):
        log.create_topic("flights")
    assert log.create_topic("flights", partitions=7, exist_ok=True) == []
    assert log.topic("flights").partitions == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": 5}, "name is 5 .int.; give text"),
        ({"name": "x", "partitions": "3"}, "partitions is '3' .str.; give a whole number"),
        ({"name": "x", "partitions": True}, "partitions is True .bool.; give a whole number"),
        ({"name": "x", "exist_ok": "no"}, "exist_ok is 'no' .str.; give True or False"),
    ],
)
def test_plain_arguments_of_another_type_are_named(
    log: tidelog.Directory, arguments: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        log.create_topic(**arguments)  # type: ignore[arg-type]


def test_one_name_stands_for_a_list_of_names() -> None:
    """A text is one name, not a list of letters; a partition is one name, not a list of fields."""

    @reads_arguments()
    def count(
        topics: Sequence[str] | None = None,
        names: Iterable[str | TopicPartition] = (),
        either: str | Sequence[str] = "",
        tables: Mapping[str, str] | None = None,
    ) -> object:
        return topics, names, either, tables

    name = TopicPartition("tides", 0)
    assert count("tides", name) == (["tides"], [name], "", None)  # type: ignore[arg-type] # is tried
    assert count(("a", "b"), names=["c"], either="d") == (("a", "b"), ["c"], "d", None)
    assert count(None, tables={"a": "b"}) == (None, (), "", {"a": "b"})


def test_collections_are_no_plain_arguments() -> None:
    @reads_arguments()
    def call(delays_ms: Sequence[int] = (), names: Iterable[str] | None = None, n: int = 0) -> int:
        return sum(delays_ms) + len(list(names or ())) + n

    assert call((0, 1000), ["a", "b"], 5) == 1007
    assert call([1], names=("a",)) == 2
    with pytest.raises(InvalidRequest, match=r"n is '5' \(str\); give a whole number"):
        call(n="5")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match=f"delays_ms is {2**70}; give a whole number of at mo"):
        call([0, 2**70])


def test_scans_show_both_times_by_default(log: tidelog.Directory) -> None:
    log.append("flights", [NewRecord(value=b"v", timestamp=5)])
    for table in (log.scan("flights").to_table(), log.read("flights").read_all()):
        (row,) = table.select(["timestamp", "appendTimestamp"]).to_pylist()
        assert row["appendTimestamp"] == TIME
        assert row["timestamp"] == datetime(1970, 1, 1, 0, 0, 0, 5_000, tzinfo=UTC)


def test_every_error_is_public() -> None:
    kinds = {
        name: kind
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, TidelogError)
    }
    assert {name for name in kinds if name in tidelog.__all__} == kinds.keys()
    assert all(getattr(tidelog, name) is kind for name, kind in kinds.items())
    assert issubclass(InvalidRecord, TidelogError)


SERVERS = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"bootstrap": 5}, r"bootstrap is 5 \(int\); give text"),
        ({"bootstrap": [SERVERS]}, r"bootstrap is \['127.0.0.1:1'\] \(list\); give text"),
        ({"config": 5}, "config is 5; give a dict of settings"),
        ({"config": {5: "a"}}, "the name of setting 5 is int"),
        ({"config": {"acks": object()}}, "acks"),
        ({"timeout_s": "5"}, r"timeout_s is '5' \(str\); give a number"),
        ({"timeout_s": True}, r"timeout_s is True \(bool\); give a number"),
        ({"env": 5}, r"env is 5 \(int\); give an Env"),
    ],
)
@pytest.mark.parametrize("connect", [tidelog.connect, tidelog.connect_async])
def test_a_connection_names_the_argument_that_is_wrong(
    connect: Callable[..., object], wrong: dict[str, object], told: str
) -> None:
    with pytest.raises((InvalidRequest, ConfigError), match=told):
        connect(**{"bootstrap": SERVERS, **wrong})


def test_a_connection_accepts_settings_as_numbers_and_whole_seconds() -> None:
    config = {"linger.ms": 5, "enable.idempotence": True}
    tidelog.connect(SERVERS, config=config, timeout_s=5).close()  # type: ignore[arg-type]
