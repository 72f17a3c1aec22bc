"""Options of `format("tidelog")`: their names, how their text is read, and the request of a read.

Owns the options of reads, including those that say where ranges begin and end: offsets and times,
for all partitions or for each. Not owned: options of streams (`stream_options`), of sinks
(`sink_options`), of clients (`broker_settings`).

Invariants: an option that means the same as one of the Kafka connector has its name. Names are
case-insensitive. An unknown option is an error that names the nearest one: a misspelled filter
would silently read a whole topic, or write elsewhere. Times without a zone are refused; numbers are
ms, as in the Kafka connector. An option that only one kind of source supports is refused for the
other, with the reason.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeVar

from tidelog.env import Env, os_env
from tidelog.errors import InvalidRequest, InvalidTime
from tidelog.objects.store import local_path
from tidelog.record.serde import SERDE_NAMES
from tidelog.timespec import parse_point
from tidelog.types import (
    EARLIEST_OFFSET,
    EPOCH,
    LATEST_OFFSET,
    SPLIT_BYTES,
    ClockName,
    IsolationLevel,
    TopicPartition,
)

READ_OPTIONS: Final = {
    "path": "directory of topics: a path, or the URL of an object store",
    "kafka.bootstrap.servers": "brokers to read from instead, host:port[,host:port]",
    "kafka.*": "settings of the client under Kafka's names, such as kafka.security.protocol",
    "store.*": "settings of the object store that path names",
    "subscribe": "topics, separated by commas",
    "topic": "one topic, under the name that a write gives it",
    "subscribePattern": "regular expression for whole names of topics",
    "assign": 'partitions, {"topic": [0, 1]}',
    "startingOffsets": 'earliest, or offsets by partition, {"topic": {"0": 23, "1": -2}}',
    "endingOffsets": 'latest, or offsets by partition, {"topic": {"0": 42, "1": -1}}',
    "startingTimestamp": "start of the time range, inclusive: ms, or as docs/time.md says",
    "endingTimestamp": "end of the time range, exclusive",
    "startingOffsetsByTimestamp": 'starts by partition, {"topic": {"0": ms}}',
    "endingOffsetsByTimestamp": 'ends by partition, {"topic": {"0": ms}}',
    "startingOffsetsByTimestampStrategy": "error or latest (reads nothing), if nothing is so late",
    "timeRange": "exact (the records inside) or positions (offsets by time, as the connector)",
    "readUntil": "written (all that is there) or flushed (what a crash can't take back)",
    "clock": "record (timestamp) or append (when the log took it)",
    "strict": "true: records without a time on the clock asked are an error",
    "columns": "columns to read, separated by commas",
    "table": "true: the record that stands for each key alone, of committed ones (docs/tables.md)",
    "asOf": "with table: as of this time, inclusive; all that is there where left out",
    "inexact": "with table: refuse or mark, where compaction or retention took the past away",
    "keyAs": "what keys are, and so the type of the column: bytes, string, int32, int64, ...",
    "valueAs": "what values are, likewise",
    "mode": "failfast, or permissive: null where a cell can't be shown, _corrupt_record says why",
    "includeHeaders": "true: with the column headers",
    "includeAppendTimestamp": "true: with the column appendTimestamp",
    "minPartitions": "make at least about so many tasks",
    "maxRecordsPerPartition": "how many offsets a task reads, at most",
    "splitBytes": "about how many bytes of log a task reads, at most",
    "pushdown": "false: leave all filters to Spark, also where the session pushes them down",
    "isolation": "read_uncommitted or read_committed",
    "kafka.isolation.level": "the same under the connector's name",
    "failOnDataLoss": "true: offsets asked for that are gone are an error, those of a segment that"
    " is missing in the middle of the log included",
    "zoneCache": "folder on the driver for zone maps of segments that have none, such as Kafka's",
    "kafkaConsumer.pollTimeoutMs": "how long a task waits for the next records of a broker, in ms",
    "fetchOffset.numRetries": "how often the driver asks brokers for offsets before it gives up",
    "fetchOffset.retryIntervalMs": "how long it waits between two attempts, in ms",
    "groupIdPrefix": "what the client's group id begins with; nothing is ever committed to a group",
}


WRITE_OPTIONS: Final = {
    "path": "directory of topics",
    "kafka.bootstrap.servers": "brokers to write to instead, host:port[,host:port]",
    "kafka.*": "settings of the producer under Kafka's names, such as kafka.security.protocol",
    "topic": "topic for all rows, instead of the column topic",
    "keyAs": "what the column key becomes: bytes, string, int32, int64, double, uuid or json",
    "valueAs": "what the column value becomes, likewise",
    "createPartitions": "make the topic where it is missing, with so many partitions",
    "createConfig": 'settings of a topic that is made, {"retention.ms": "-1"}',
    "compression": "codec for topics whose compression.type is producer",
    "batchBytes": "where a batch is closed, in bytes before compression",
    "clock.ms": "what the log's clock says at the commit, in ms; the machine's where missing",
    "includeHeaders": "accepted as in the connector; headers are written where there is a column",
    "delivery": "to brokers: idempotent, or exactly-once (one transaction for each task)",
    "transactionalIdPrefix": "what the transactional ids of exactly-once begin with",
    "markerTopic": "compacted topic where exactly-once notes what was written",
    "txnAppId": "name of a writer that numbers its batch writes",
    "txnVersion": "number of this write; a topic that has it, or a later one, gets nothing",
    "lockWaitMs": "how long a commit waits for another writer of the directory, in ms",
}


BOOTSTRAP: Final = "kafka.bootstrap.servers"


# What options of these prefixes mean is for somebody else to say.
PREFIXES: Final = ("kafka.", "store.")


# Spark reads these itself, and hands them on to the sink of a streaming query.
SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})


# What Spark's catalog says about a table of its own (`CREATE TABLE ... USING tidelog`).
_CATALOGS_OWN: Final = "provider"


_NO_CATALOG: Final = (
    "A table of Spark's catalog (CREATE TABLE, saveAsTable) can't be read or written by its name"
    " alone: Spark does not pass its options to Python data sources. Use CREATE TEMPORARY VIEW ..."
    " USING tidelog OPTIONS (path '...', topic '...') for SELECT and INSERT, or"
    " spark.read.format('tidelog') and save()"
)


_TRUTH: Final = {"true": True, "false": False}


_Value = TypeVar("_Value")


class Options:
    """Option texts by name, whatever the case. Reads them and says what is wrong with one."""

    def __init__(self, texts: Mapping[str, str], names: Mapping[str, str]) -> None:
        """Take the options.

        Raises:
            InvalidRequest: One that is not known, with the nearest that is.
        """
        self._given = {name.lower(): text for name, text in texts.items()}
        self._names = {name.lower(): name for name in names}
        if not self._given:
            raise InvalidRequest(f"there are no options at all. {_NO_CATALOG}")
        for name in self._given:
            self._check_name(name)

    def _check_name(self, name: str) -> None:
        if name in self._names or name in SPARKS_OWN:
            return
        for prefix in PREFIXES:
            if name.startswith(prefix) and name != prefix and f"{prefix}*" in self._names:
                return
        if _CATALOGS_OWN in self._given:
            raise InvalidRequest(_NO_CATALOG)
        raise InvalidRequest(f"unknown option {name!r}: {nearest(name, self._names.values())}")

    def text(self, name: str) -> str | None:
        """The option's text, None where it was not given."""
        return self._given.get(name.lower())

    def need(self, name: str, why: str) -> str:
        """The option's text; raises InvalidRequest where it was not given."""
        value = self.text(name)
        if not value:
            raise InvalidRequest(f"option {name} is missing: {why}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """`true` or `false`."""
        value = self.text(name)
        return default if value is None else self._choose(name, value, _TRUTH)

    def choice(self, name: str, allowed: Mapping[str, _Value], default: str) -> _Value:
        """One of a few words."""
        return self._choose(name, self.text(name) or default, allowed)

    def _choose(self, name: str, text: str, allowed: Mapping[str, _Value]) -> _Value:
        word = text.strip().lower()
        if word not in allowed:
            raise InvalidRequest(f"option {name}={text}: one of {', '.join(allowed)}")
        return allowed[word]

    def number(self, name: str, default: int, *, at_least: int = 1) -> int:
        """A whole number."""
        value = self.text(name)
        if value is None:
            return default
        if not re.fullmatch(r"[0-9]{1,18}", value.strip()) or int(value) < at_least:
            raise InvalidRequest(f"option {name}={value}: a number from {at_least} on")
        return int(value)

    def names(self, name: str) -> tuple[str, ...]:
        """Words separated by commas; empty where not given."""
        words = (word.strip() for word in (self.text(name) or "").split(","))
        return tuple(word for word in words if word)

    def prefixed(self, prefix: str) -> dict[str, str]:
        """The options of a prefix, in lower case and without it."""
        items = self._given.items()
        return {name.removeprefix(prefix): text for name, text in items if name.startswith(prefix)}

    def place(
        self, not_of_brokers: Mapping[str, str], of_brokers: Mapping[str, str]
    ) -> tuple[str, str]:
        """Path and brokers, one of them empty.

        Args:
            not_of_brokers: Options that only directories have, with the reason.
            of_brokers: Options that only brokers have, with the reason.

        Raises:
            InvalidRequest: Both or neither, or an option of the other kind.
        """
        path, bootstrap = local_path(self.text("path") or ""), self.text(BOOTSTRAP) or ""
        if bool(path) == bool(bootstrap):
            problem = "not both" if path else "neither is there"
            raise InvalidRequest(
                f"give path (a directory of topics) or {BOOTSTRAP} (brokers), {problem}"
            )
        self.refuse(not_of_brokers if bootstrap else of_brokers)
        return path, bootstrap

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Raise InvalidRequest for an option that is given and has a reason against it."""
        for name, reason in reasons.items():
            if self.text(name) is not None:
                raise InvalidRequest(f"option {name} {reason}")

    def client(self, refused: Mapping[str, str]) -> dict[str, str]:
        """Settings of the client; raises InvalidRequest for one that is refused, by the reason."""
        settings = self.prefixed("kafka.")
        for name, reason in refused.items():
            if name in settings:
                raise InvalidRequest(f"option kafka.{name} is not supported: {reason}")
        del settings["bootstrap.servers"]
        return settings

    def json(self, name: str) -> dict[str, object]:
        """A JSON object."""
        text = self.text(name)
        assert text is not None
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(f"option {name}={text}: not JSON: {error}") from error
        if not isinstance(value, dict):
            meaning = (READ_OPTIONS | WRITE_OPTIONS)[name]
            raise InvalidRequest(f"option {name}={text}: {meaning}")
        return value


def read_serdes(options: Options) -> dict[str, str]:
    """Names of serializers of the columns `key` and `value`, where `keyAs` and `valueAs` are given.

    Raises:
        InvalidRequest: There is none of that name.
    """
    allowed = {name: name for name in SERDE_NAMES}
    return {
        column: options.choice(option, allowed, "bytes")
        for column, option in (("key", "keyAs"), ("value", "valueAs"))
        if options.text(option) is not None
    }


def nearest(name: str, names_known: Iterable[str]) -> str:
    """What may have been meant by a name that nobody knows, and what there is."""
    names = {one.lower(): one for one in names_known}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {names[near[0]]}? " if near else ""
    return f"{hint}there are: {', '.join(names.values())}"


# The option of each side of a batch, the word for where the log begins or ends, and its number.
START: Final = ("startingOffsets", "earliest", EARLIEST_OFFSET)


END: Final = ("endingOffsets", "latest", LATEST_OFFSET)


PerPartition = Mapping[TopicPartition, int]


# One for all partitions, or one for each; None where nothing was said.
Given = int | PerPartition | None


def read_offset_option(options: Options, side: tuple[str, str, int]) -> Given:
    """An offset option: its one word, or JSON by partition.

    Args:
        options: Of the read.
        side: `START` or `END`.
    """
    name, word, special = side
    text = options.text(name)
    if text is None or text.strip().lower() == word:
        return None
    if not text.lstrip().startswith("{"):
        raise InvalidRequest(f"option {name}={text}: {READ_OPTIONS[name]}")

    def read(where: str, value: object) -> int:
        # The other side's word makes no sense in a batch: nothing starts at the end.
        if type(value) is int and (value >= 0 or value == special):
            return value
        raise InvalidRequest(f"{where}: offset {value!r}, a number >= 0 or {special} ({word})")

    return read_by_partition(options, name, read)


def read_time_option(options: Options, name: str, by_partition: str, now_ms: int) -> Given:
    """A time option: one for all partitions, which wins, or JSON by partition."""
    text = options.text(name)
    if text is not None:
        return _read_time(f"option {name}", text, now_ms)
    if options.text(by_partition) is None:
        return None
    return read_by_partition(
        options, by_partition, lambda where, value: _read_time(where, value, now_ms)
    )


def time_texts(options: Options, start_ms: Given, end_ms: Given) -> dict[int, str]:
    """Times that were given as text, not as a number of ms, and that text."""
    texts = {}
    for name, time_ms in (("startingTimestamp", start_ms), ("endingTimestamp", end_ms)):
        text = (options.text(name) or "").strip()
        if isinstance(time_ms, int) and text and not text.lstrip("-").isdigit():
            texts[time_ms] = text
    return texts


def _read_time(where: str, value: object, now_ms: int) -> int:
    if isinstance(value, str | int) and not isinstance(value, bool):
        try:
            return parse_point(str(value), now_ms=now_ms)
        except InvalidTime as error:
            raise InvalidTime(error.text, f"{where}: {error.reason}") from error
    raise InvalidRequest(f"{where}: time {value!r}, ms since the epoch or a text")


def read_by_partition(
    options: Options, name: str, read: Callable[[str, object], int]
) -> PerPartition:
    """`{"topic": {"0": VALUE}}` as values by partition.

    Args:
        options: Of the read.
        name: The option.
        read: Reads a value; told first what errors begin with, option and partition.
    """
    values_by_partition: dict[TopicPartition, int] = {}
    for topic, values in options.json(name).items():
        if not isinstance(values, dict):
            raise InvalidRequest(
                f"option {name}: topic {topic} has {json.dumps(values)}; {READ_OPTIONS[name]}"
            )
        for number, value in values.items():
            if not re.fullmatch(r"[0-9]{1,9}", number):
                raise InvalidRequest(
                    f"option {name}: {number!r} is no number of a partition of topic {topic}"
                )
            partition = TopicPartition(topic, int(number))
            values_by_partition[partition] = read(f"option {name}, {partition}", value)
    return values_by_partition


# The Kafka connector's defaults.
POLL_TIMEOUT_MS: Final = 120_000


OFFSET_TRIES: Final = 3


OFFSET_RETRY_MS: Final = 1_000


GROUP_PREFIX: Final = "spark-kafka-relation"


# The Kafka connector's columns, in its order; headers and append time come behind on request.
COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


TIME_COLUMNS: Final = ("timestamp", "appendTimestamp", "createTimestamp")


# Why a record can't be shown, with mode=permissive; under the name that Spark's file sources have.
REASON: Final = "_corrupt_record"


_NOT_OF_BROKERS: Final = {
    "zoneCache": "is about directories; brokers have no zone maps",
    "splitBytes": "is about directories; brokers know no sizes, give maxRecordsPerPartition",
    "readUntil": "is about directories; brokers show what their replicas have",
}


_NOT_OF_TABLES: Final = (
    dict.fromkeys(
        (
            "startingOffsets",
            "endingOffsets",
            "startingTimestamp",
            "endingTimestamp",
            "startingOffsetsByTimestamp",
            "endingOffsetsByTimestamp",
            "startingOffsetsByTimestampStrategy",
            "timeRange",
            "readUntil",
            "strict",
        ),
        "chooses records; a table is as of one time: asOf",
    )
    | dict.fromkeys(
        ("minPartitions", "maxRecordsPerPartition", "splitBytes", "zoneCache"),
        "is about splits; a table has a task for each partition (jobs.tables.table has more)",
    )
    | dict.fromkeys(
        ("isolation", "kafka.isolation.level"), "is about records; tables show committed ones alone"
    )
    | {
        "failOnDataLoss": "is about ranges; a table that has lost records is an error",
        "pushdown": "is about records; a filter on a table is applied behind it",
    }
)


_OF_BROKERS: Final = dict.fromkeys(
    (
        "kafkaConsumer.pollTimeoutMs",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "groupIdPrefix",
    ),
    "is about brokers; a directory is read from its files",
)


_REFUSED_CLIENT: Final = {
    "auto.offset.reset": "where a read starts is said by startingOffsets",
    "key.deserializer": "give keyAs",
    "value.deserializer": "give valueAs",
    "key.serializer": "keys are bytes, and nothing is written here",
    "value.serializer": "values are bytes, and nothing is written here",
    "enable.auto.commit": "a read commits no offsets to a group",
    "interceptor.classes": "interceptors could change the records",
}


_ISOLATION: Final = {level.name.lower(): level for level in IsolationLevel}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """A table as of a time.

    Attributes:
        at_ms: The time, inclusive; None for all that is there.
        inexact: `refuse` or `mark`.
    """

    at_ms: int | None = None
    inexact: str = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Request of a read. Offsets -2 and -1 stand for earliest and latest.

    Attributes:
        path: Directory of topics, "" where brokers are read.
        bootstrap: Brokers, `host:port[,host:port]`; "" where a directory is read.
        client: Settings of the client under Kafka's names; for brokers.
        store: Settings of the object store that `path` names.
        topics: Names of topics, where they were given so.
        pattern: Pattern of whole names, where it was given so.
        if_there: Topics that were named and are not there are left out.
        assigned: Partitions, where they were given so.
        start_offsets: One for all partitions, or one for each; None where not given.
        end_offsets: Likewise.
        start_ms: Start of the time range, likewise.
        end_ms: End of the time range, likewise.
        clock: Which time is meant.
        is_exact: Times select records, else positions.
        needs_match: A start behind all records is an error (positions only).
        strict: Records without a time are an error.
        columns: Columns of a row, in order.
        min_partitions: Lower bound of splits, a hint.
        max_records: Upper bound of offsets in a split, None for no such.
        split_bytes: Upper bound of a split, about.
        isolation: Whether records of open and aborted transactions are read.
        fail_on_data_loss: Whether offsets that are gone are an error.
        zone_cache: Folder for zone maps that the directory doesn't have; None for no such.
        until_flushed: Read no further than what a crash of the log's owner can't take back.
        pushes_down: Whether filters may be taken over from Spark.
        poll_timeout_ms: How long a task waits for a broker's next records.
        offset_tries: How often brokers are asked for offsets.
        offset_retry_ms: How long to wait in between.
        group_prefix: What the client's group id begins with.
        table: How keys are reduced; None where records are read.
        serdes: Names of serializers of the columns `key` and `value`, where they were given.
        permissive: Cells that can't be shown are null, and the column `REASON` says why.
        time_texts: Times of the range that were given as text, and that text.
    """

    path: str = ""
    bootstrap: str = ""
    # Passwords may be among these: not shown.
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    store: Mapping[str, str] = field(default_factory=dict, repr=False)
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    if_there: bool = False
    assigned: tuple[TopicPartition, ...] = ()
    start_offsets: Given = None
    end_offsets: Given = None
    start_ms: Given = None
    end_ms: Given = None
    clock: ClockName = ClockName.RECORD
    is_exact: bool = True
    needs_match: bool = False
    strict: bool = False
    columns: tuple[str, ...] = COLUMNS
    min_partitions: int = 1
    split_bytes: int = SPLIT_BYTES
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    fail_on_data_loss: bool = True
    zone_cache: str | None = None
    max_records: int | None = None
    until_flushed: bool = False
    pushes_down: bool = True
    poll_timeout_ms: int = POLL_TIMEOUT_MS
    offset_tries: int = OFFSET_TRIES
    offset_retry_ms: int = OFFSET_RETRY_MS
    group_prefix: str = GROUP_PREFIX
    table: TableOptions | None = None
    serdes: Mapping[str, str] = field(default_factory=dict)
    permissive: bool = False
    time_texts: Mapping[int, str] = field(default_factory=dict)

    def write_time(self, time_ms: int) -> str:
        """A time as the query writes times: as it was given, else in its manner."""
        if time_ms in self.time_texts:
            return self.time_texts[time_ms]
        try:
            is_number = not self.time_texts
            return f"{time_ms} ms" if is_number else f"{EPOCH + timedelta(milliseconds=time_ms)}"
        except OverflowError:
            return f"{time_ms} ms"

    @property
    def is_broker(self) -> bool:
        """Whether brokers are read, not a directory."""
        return bool(self.bootstrap)

    @property
    def has_times(self) -> bool:
        """Whether a time range was asked for."""
        return self.start_ms is not None or self.end_ms is not None


def read_source_options(texts: Mapping[str, str], env: Env | None = None) -> SourceOptions:
    """The options of a read.

    Args:
        texts: As Spark hands them over.
        env: Its clock is what `now` means in times.

    Raises:
        InvalidRequest, InvalidTime: One that is missing, unknown or can't be read.
    """
    options = Options(texts, READ_OPTIONS)
    now_ms = (env or os_env()).clock.now_ms()
    start_ms = read_time_option(options, "startingTimestamp", "startingOffsetsByTimestamp", now_ms)
    end_ms = read_time_option(options, "endingTimestamp", "endingOffsetsByTimestamp", now_ms)
    # The connector's precedence: a time wins over an offset on the same side.
    start_offsets = None if start_ms is not None else read_offset_option(options, START)
    end_offsets = None if end_ms is not None else read_offset_option(options, END)
    topics, topic = options.names("subscribe"), options.text("topic")
    pattern = options.text("subscribePattern")
    assigned = _assigned(options)
    if sum(map(bool, (topics, topic, pattern, assigned))) != 1:
        raise InvalidRequest(
            "give one of the options subscribe, topic, subscribePattern and assign"
        )
    path, bootstrap = _place(options)
    is_exact = options.choice(
        "timeRange",
        {"exact": True, "positions": False},
        # As in the connector, and what brokers can find without reading all behind the start.
        "positions" if bootstrap else "exact",
    )
    return SourceOptions(
        path=path,
        bootstrap=bootstrap,
        client=_client(options) if bootstrap else {},
        store=options.prefixed("store."),
        topics=topics if topic is None else (topic,),
        pattern=pattern,
        assigned=assigned,
        start_offsets=start_offsets,
        end_offsets=end_offsets,
        start_ms=start_ms,
        end_ms=end_ms,
        clock=options.choice("clock", {name.value: name for name in ClockName}, "record"),
        is_exact=is_exact,
        needs_match=options.choice(
            "startingOffsetsByTimestampStrategy",
            {"latest": False, "error": True},
            "latest" if is_exact else "error",
        ),
        strict=options.flag("strict", default=False),
        columns=read_columns(options),
        min_partitions=options.number("minPartitions", 1),
        max_records=options.number("maxRecordsPerPartition", 0) or None,
        split_bytes=options.number("splitBytes", SPLIT_BYTES),
        isolation=_isolation(options),
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        zone_cache=options.text("zoneCache"),
        until_flushed=options.choice("readUntil", {"written": False, "flushed": True}, "written"),
        # A filter on offsets or times below a table would make another table.
        pushes_down=options.flag("pushdown", default=not options.flag("table", default=False)),
        poll_timeout_ms=options.number("kafkaConsumer.pollTimeoutMs", POLL_TIMEOUT_MS),
        offset_tries=options.number("fetchOffset.numRetries", OFFSET_TRIES),
        offset_retry_ms=options.number("fetchOffset.retryIntervalMs", OFFSET_RETRY_MS, at_least=0),
        group_prefix=options.text("groupIdPrefix") or GROUP_PREFIX,
        table=_table(options, now_ms),
        serdes=read_serdes(options),
        permissive=read_mode(options),
        time_texts=time_texts(options, start_ms, end_ms),
    )


def _table(options: Options, now_ms: int) -> TableOptions | None:
    """The table that is asked for; raises InvalidRequest for what has no meaning there."""
    if not options.flag("table", default=False):
        for name in ("asOf", "inexact"):
            if options.text(name) is not None:
                raise InvalidRequest(f"option {name} goes with table=true")
        return None
    options.refuse(_NOT_OF_TABLES)
    at = options.text("asOf")
    return TableOptions(
        at_ms=None if at is None else parse_point(at, now_ms=now_ms),
        inexact=options.choice("inexact", {"refuse": "refuse", "mark": "mark"}, "refuse"),
    )


def _place(options: Options) -> tuple[str, str]:
    """Path and brokers, one of them empty; raises InvalidRequest for what fits the other only."""
    path, bootstrap = options.place(_NOT_OF_BROKERS, _OF_BROKERS)
    others = options.prefixed("store." if bootstrap else "kafka.").keys() - {"isolation.level"}
    if others:
        prefix, owner = ("store", "object stores") if bootstrap else ("kafka", "brokers")
        raise InvalidRequest(f"option {prefix}.{min(others)} is about {owner}, which are not read")
    return path, bootstrap


def _client(options: Options) -> dict[str, str]:
    settings = options.client(_REFUSED_CLIENT)
    settings.pop("isolation.level", None)
    return settings


def read_columns(options: Options) -> tuple[str, ...]:
    """The columns of a row; whether they exist is for the scan to say.

    Raises:
        InvalidRequest: The column of reasons without mode=permissive.
    """
    named = options.names("columns")
    with_headers = options.flag("includeHeaders", default=False)
    with_append_time = options.flag("includeAppendTimestamp", default=False)
    columns = named or COLUMNS
    if with_headers and "headers" not in columns:
        columns = (*columns, "headers")
    if with_append_time and "appendTimestamp" not in columns:
        columns = (*columns, "appendTimestamp")
    is_permissive = read_mode(options)
    if REASON in columns and not is_permissive:
        raise InvalidRequest(f"column {REASON} goes with the option mode=permissive")
    return (*columns, REASON) if is_permissive and REASON not in columns else columns


def read_mode(options: Options) -> bool:
    """Whether a record that can't be shown is shown as far as it can be, with the reason."""
    modes = {"failfast": False, "permissive": True}
    if (options.text("mode") or "").strip().lower() == "dropmalformed":
        raise InvalidRequest(
            "option mode=dropmalformed would lose records in silence: give mode=permissive and"
            f" filter by {REASON} IS NULL"
        )
    return options.choice("mode", modes, "failfast")


def scan_columns(columns: Sequence[str], serdes: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns that a scan reads for these rows.

    The offset is among them wherever a cell may be one that can't be shown: errors name it. For the
    column of reasons, columns with a serializer are read even where they are not shown: a record is
    sound or not whatever columns a query names.
    """
    names = tuple(name for name in columns if name != REASON)
    if REASON in columns:
        names += tuple(name for name in ("key", "value") if name in serdes and name not in names)
    may_fail = any(name in TIME_COLUMNS or serdes.get(name, "bytes") != "bytes" for name in names)
    return (*names, "offset") if may_fail and "offset" not in names else names


def _isolation(options: Options) -> IsolationLevel:
    ours, theirs = options.text("isolation"), options.text("kafka.isolation.level")
    if ours and theirs and ours.lower() != theirs.lower():
        raise InvalidRequest(f"isolation={ours} and kafka.isolation.level={theirs}: give one")
    name = "isolation" if ours else "kafka.isolation.level"
    return options.choice(name, _ISOLATION, "read_uncommitted")


def _assigned(options: Options) -> tuple[TopicPartition, ...]:
    text = options.text("assign")
    if text is None:
        return ()
    partitions = []
    for topic, numbers in options.json("assign").items():
        if not isinstance(numbers, list) or not all(type(n) is int and n >= 0 for n in numbers):
            raise InvalidRequest(f"option assign={text}: {READ_OPTIONS['assign']}")
        partitions += [TopicPartition(topic, number) for number in numbers]
    return tuple(partitions)
