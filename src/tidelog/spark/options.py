"""Options of `format("tidelog")`: names and parsing, and the options of a read.

The start and the end of the range to read are offsets or times: one value for all partitions, or
one value for each partition. Options of streams are in `stream_options`, options of sinks in
`sink_options`, and settings of clients in `broker_settings`.

Invariants: an option that means the same as an option of Spark's Kafka connector has the same name.
Names are case-insensitive. An unknown option is an error, because a query with a misspelled option
could read a whole topic, or write to another place. The error's message suggests a known option
with a similar name, if there is one. A date or a local time needs a zone; numbers are times in ms,
as in the Kafka connector. An option for directories is refused if the query reads brokers, and an
option for brokers if it reads a directory; the error gives the reason.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from datetime import timedelta
from typing import Final, TypeVar

from tidelog.env import Env, os_env
from tidelog.errors import InvalidRequest, InvalidTime
from tidelog.lazy_dataclass import dataclass
from tidelog.objects.store import local_path
from tidelog.record.serde import SERDE_NAMES
from tidelog.split_size import SPLIT_BYTES
from tidelog.timespec import parse_point
from tidelog.types import (
    EARLIEST_OFFSET,
    EPOCH,
    LATEST_OFFSET,
    ClockName,
    IsolationLevel,
    TopicPartition,
)

READ_OPTIONS: Final = {
    "path": "directory of topics: a path, or the URL of an object store",
    "kafka.bootstrap.servers": "brokers to read from, instead of path: host:port[,host:port]",
    "kafka.*": "settings of the client under Kafka's names, such as kafka.security.protocol",
    "store.*": "settings of the object store that path names",
    "subscribe": "topics, separated by commas",
    "topic": "name of one topic; writes use the same option, so one view can be read and written",
    "subscribePattern": "regular expression that matches whole names of topics",
    "assign": 'partitions, {"topic": [0, 1]}',
    "startingOffsets": 'earliest, or offsets by partition, {"topic": {"0": 23, "1": -2}}',
    "endingOffsets": 'latest, or offsets by partition, {"topic": {"0": 42, "1": -1}}',
    "startingTimestamp": "start of the time range, inclusive: ms, or text as in docs/time.md",
    "endingTimestamp": "end of the time range, exclusive",
    "startingOffsetsByTimestamp": 'start times by partition, {"topic": {"0": ms}}',
    "endingOffsetsByTimestamp": 'end times by partition, {"topic": {"0": ms}}',
    "startingOffsetsByTimestampStrategy": "what to do if no record is at or after the start"
    " time: error, or latest (read nothing)",
    "timeRange": "exact (only records in the time range) or positions (as in Spark's Kafka"
    " connector: all offsets between two records; the first record at or after the start belongs to"
    " the range, the first record at or after the end does not)",
    "readUntil": "written (all records) or flushed (only records that survive a crash)",
    "clock": "record (timestamp) or append (when the log appended the record)",
    "strict": "true: records without a time on the chosen clock are an error",
    "columns": "columns to read, separated by commas",
    "table": "true: only the latest committed record of each key (docs/tables.md)",
    "asOf": "with table: as of this time, inclusive; default: all records",
    "inexact": "with table, if compaction or retention has removed records of the requested time:"
    " refuse the read, or mark (build the table from the remaining records)",
    "keyAs": "type of the keys and of the column key: bytes, string, int32, int64, double, uuid or"
    " json",
    "valueAs": "type of the values and of the column value, as for keyAs",
    "mode": "failfast (an invalid cell is an error) or permissive (it is null, and _corrupt_record"
    " has the reason)",
    "includeHeaders": "true: add the column headers",
    "includeAppendTimestamp": "true: add the column appendTimestamp",
    "minPartitions": "minimum number of tasks; approximate if brokers are read",
    "maxRecordsPerPartition": "maximum number of offsets that a task reads",
    "splitBytes": "maximum number of log bytes that a task reads, approximately",
    "pushdown": "false: Spark applies all filters, even if the session pushes them down",
    "isolation": "read_uncommitted or read_committed",
    "kafka.isolation.level": "the option isolation, under its name in Spark's Kafka connector",
    "failOnDataLoss": "true: requested offsets that no longer exist are an error, also if a segment"
    " is missing in the middle of the log",
    "zoneCache": "folder on the driver for zone maps of segments that have none, such as segments"
    " that Kafka wrote",
    "kafkaConsumer.pollTimeoutMs": "how long a task waits for the next records of a broker, in ms",
    "fetchOffset.numRetries": "maximum number of times that the driver requests offsets from"
    " brokers",
    "fetchOffset.retryIntervalMs": "pause between two attempts of fetchOffset.numRetries, in ms",
    "groupIdPrefix": "prefix of the client's group id; nothing is ever committed to the group",
}

WRITE_OPTIONS: Final = {
    "path": "directory of topics",
    "kafka.bootstrap.servers": "brokers to write to, instead of path: host:port[,host:port]",
    "kafka.*": "settings of the producer under Kafka's names, such as kafka.security.protocol",
    "topic": "topic for all rows, instead of the column topic",
    "keyAs": "type that the column key is encoded as: bytes, string, int32, int64, double, uuid or"
    " json",
    "valueAs": "type that the column value is encoded as, as for keyAs",
    "createPartitions": "number of partitions of the topic, which is created if it does not exist",
    "createConfig": 'settings of a topic that is created, {"retention.ms": "-1"}',
    "compression": "codec for topics whose compression.type is producer",
    "batchBytes": "maximum size of a batch, in bytes before compression",
    "clock.ms": "time of the log's clock at the commit, in ms; default: the machine's time",
    "includeHeaders": "accepted as in Spark's Kafka connector, without effect: headers are written"
    " if there is a column named headers",
    "delivery": "to brokers: idempotent, or exactly-once (one transaction for each task)",
    "transactionalIdPrefix": "with exactly-once: prefix of the transactional ids",
    "markerTopic": "with exactly-once: compacted topic that stores which batches are written",
    "txnAppId": "name under which a writer numbers its batch writes (see txnVersion)",
    "txnVersion": "number of this write under txnAppId; nothing is written to a topic that already"
    " has this number or a larger one",
    "lockWaitMs": "how long a commit waits for another writer of the directory, in ms",
}

BOOTSTRAP: Final = "kafka.bootstrap.servers"

# Prefixes of options that the client or the object store checks.
PREFIXES: Final = ("kafka.", "store.")

# Options that Spark uses itself, but also passes to the sink of a streaming query.
SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname"})

# Option that Spark passes for a table of Spark's catalog (`CREATE TABLE ... USING tidelog`).
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
    """Options by case-insensitive name. The methods parse values; their errors name the option."""

    def __init__(self, texts: Mapping[str, str], names: Mapping[str, str]) -> None:
        """Check the names of the options.

        Raises:
            InvalidRequest: An option is unknown (the message suggests a similar known one, if any),
                or there are no options.
        """
        self._texts = {name.lower(): text for name, text in texts.items()}
        self._names = {name.lower(): name for name in names}
        if not self._texts:
            raise InvalidRequest(f"no options are given. {_NO_CATALOG}")
        for name in self._texts:
            self._check_name(name)

    def _check_name(self, name: str) -> None:
        if name in self._names or name in SPARKS_OWN:
            return
        for prefix in PREFIXES:
            if name.startswith(prefix) and name != prefix and f"{prefix}*" in self._names:
                return
        if _CATALOGS_OWN in self._texts:
            raise InvalidRequest(_NO_CATALOG)
        raise InvalidRequest(f"unknown option {name!r}: {nearest(name, self._names.values())}")

    def text(self, name: str) -> str | None:
        """Return the option's text; None if the option is not given."""
        return self._texts.get(name.lower())

    def flag(self, name: str, *, default: bool) -> bool:
        """Return True for `true`, and False for `false`; `default` if the option is not given."""
        value = self.text(name)
        return default if value is None else self._choose(name, value, _TRUTH)

    def choice(self, name: str, allowed: Mapping[str, _Value], default: str) -> _Value:
        """Return the value in `allowed` for the option's word; the default word is `default`.

        Words are case-insensitive.
        """
        return self._choose(name, self.text(name) or default, allowed)

    def _choose(self, name: str, text: str, allowed: Mapping[str, _Value]) -> _Value:
        word = text.strip().lower()
        if word not in allowed:
            raise InvalidRequest(f"option {name}={text}: must be one of {', '.join(allowed)}")
        return allowed[word]

    def number(self, name: str, default: int, *, at_least: int = 1) -> int:
        """Return an option as a whole number; `default` if the option is not given."""
        value = self.text(name)
        if value is None:
            return default
        if not re.fullmatch(r"[0-9]{1,18}", value.strip()) or int(value) < at_least:
            raise InvalidRequest(f"option {name}={value}: give a number of at least {at_least}")
        return int(value)

    def names(self, name: str) -> tuple[str, ...]:
        """Return the words in an option's comma-separated text; () if the option is not given."""
        words = (word.strip() for word in (self.text(name) or "").split(","))
        return tuple(word for word in words if word)

    def prefixed(self, prefix: str) -> dict[str, str]:
        """Return the options with a prefix, by lower-case name without the prefix."""
        items = self._texts.items()
        return {name.removeprefix(prefix): text for name, text in items if name.startswith(prefix)}

    def location(
        self, not_of_brokers: Mapping[str, str], of_brokers: Mapping[str, str]
    ) -> tuple[str, str]:
        """Return the option `path`, and the brokers; one of the two is "".

        Args:
            not_of_brokers: Options that brokers don't support, each with the reason.
            of_brokers: Options that directories don't support, each with the reason.

        Raises:
            InvalidRequest: Both path and brokers are given; neither is given; or an option is given
                that the kind of source doesn't support.
        """
        path, bootstrap = local_path(self.text("path") or ""), self.text(BOOTSTRAP) or ""
        if bool(path) == bool(bootstrap):
            problem = "not both" if path else "neither is given"
            raise InvalidRequest(
                f"give path (a directory of topics) or {BOOTSTRAP} (brokers), {problem}"
            )
        self.refuse(not_of_brokers if bootstrap else of_brokers)
        return path, bootstrap

    def refuse(self, reasons: Mapping[str, str]) -> None:
        """Raise InvalidRequest if one of these options is given; the message has its reason."""
        for name, reason in reasons.items():
            if self.text(name) is not None:
                raise InvalidRequest(f"option {name} {reason}")

    def client(self, refused: Mapping[str, str]) -> dict[str, str]:
        """Return the client's settings without the brokers.

        Raises InvalidRequest for a setting in `refused`.
        """
        settings = self.prefixed("kafka.")
        for name, reason in refused.items():
            if name in settings:
                raise InvalidRequest(f"option kafka.{name} is not supported: {reason}")
        del settings["bootstrap.servers"]
        return settings

    def json(self, name: str) -> dict[str, object]:
        """Return the JSON object in a given option; raises InvalidRequest for another value."""
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
    """Return the names of serializers in `keyAs` and `valueAs`, by column, if given.

    Raises:
        InvalidRequest: There is no serializer of that name.
    """
    allowed = {name: name for name in SERDE_NAMES}
    return {
        column: options.choice(option, allowed, "bytes")
        for column, option in (("key", "keyAs"), ("value", "valueAs"))
        if options.text(option) is not None
    }


def nearest(name: str, known_names: Iterable[str]) -> str:
    """Return a hint for an unknown name: a similar known name, if any, and all known names."""
    names = {one.lower(): one for one in known_names}
    near = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    hint = f"did you mean {names[near[0]]}? " if near else ""
    return f"{hint}there are: {', '.join(names.values())}"


# `START` is the option for the start of a batch: its name, the word for the log's beginning, and
# the number with the same meaning as the word. `END` is the option for the end of a batch, with the
# word and the number for the log's end.
START: Final = ("startingOffsets", "earliest", EARLIEST_OFFSET)

END: Final = ("endingOffsets", "latest", LATEST_OFFSET)
PerPartition = Mapping[TopicPartition, int]

# One value for all partitions, or one value for each partition; None if the option is not given.
PartitionValues = int | PerPartition | None


def read_offset_option(options: Options, side: tuple[str, str, int]) -> PartitionValues:
    """Return the offsets by partition that an offset option gives; None if it gives none.

    Args:
        options: Options of the read.
        side: `START` or `END`.

    Returns:
        None if the option is not given, or if it is the word for all partitions (`earliest`,
        `latest`).
    """
    name, word, special = side
    text = options.text(name)
    if text is None or text.strip().lower() == word:
        return None
    if not text.lstrip().startswith("{"):
        raise InvalidRequest(f"option {name}={text}: must be {READ_OPTIONS[name]}")

    def read(where: str, value: object) -> int:
        # A start can't be -1 (the log's end), and an end can't be -2 (the log's beginning), because
        # such a batch would be empty.
        if type(value) is int and (value >= 0 or value == special):
            return value
        raise InvalidRequest(
            f"{where}: offset is {value!r}, must be a number >= 0 or {special} ({word})"
        )

    return read_by_partition(options, name, read)


def read_time_option(
    options: Options, name: str, by_partition: str, now_ms: int
) -> PartitionValues:
    """Return the time in ms in the option `name`.

    If the option `name` is not given, return the times in the option `by_partition`. If neither of
    these options is given, return None.
    """
    text = options.text(name)
    if text is not None:
        return _read_time(f"option {name}", text, now_ms)
    if options.text(by_partition) is None:
        return None
    return read_by_partition(
        options, by_partition, lambda where, value: _read_time(where, value, now_ms)
    )


def time_texts(
    options: Options, start_ms: PartitionValues, end_ms: PartitionValues
) -> dict[int, str]:
    """Return a mapping from times in ms to the user's texts, for times that were given as text."""
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
            reason = f"{where}: {error.reason}"
            raise InvalidTime(error.text, reason, is_zone_missing=error.is_zone_missing) from error
    raise InvalidRequest(f"{where}: time is {value!r}, must be ms since the epoch or text")


def read_by_partition(
    options: Options, name: str, read: Callable[[str, object], int]
) -> PerPartition:
    """Return the values of a JSON object `{"topic": {"0": VALUE}}` by partition.

    Args:
        options: Options of the read.
        name: Name of the option.
        read: Function that checks and returns a value. The first argument of `read` names the
            option and the partition, for errors.
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
                    f"option {name}: {number!r} is not a partition number of topic {topic}"
                )
            partition = TopicPartition(topic, int(number))
            values_by_partition[partition] = read(f"option {name}, {partition}", value)
    return values_by_partition


# Defaults of the Kafka connector.
POLL_TIMEOUT_MS: Final = 120_000

OFFSET_TRIES: Final = 3
OFFSET_RETRY_MS: Final = 1_000
GROUP_PREFIX: Final = "spark-kafka-relation"

# Columns of the Kafka connector, in its order. Headers and append time are added on request.
COLUMNS: Final = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")

TIME_COLUMNS: Final = ("timestamp", "appendTimestamp", "createTimestamp")

# With mode=permissive, this column has the reason why a cell is null although the record has a
# value. Spark's file sources use the same name for such a column.
REASON: Final = "_corrupt_record"

_NOT_OF_BROKERS: Final = {
    "zoneCache": "applies to directories only; brokers have no zone maps",
    "splitBytes": "applies to directories only: for brokers give maxRecordsPerPartition",
    "readUntil": "applies to directories only; brokers return only replicated records",
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
        "does not apply to tables; give the time of the table by asOf",
    )
    | dict.fromkeys(
        ("minPartitions", "maxRecordsPerPartition", "splitBytes", "zoneCache"),
        "does not apply to tables: a table is read by one task for each partition"
        " (tidelog.spark.table uses several tasks)",
    )
    | dict.fromkeys(
        ("isolation", "kafka.isolation.level"),
        "does not apply to tables, which show only committed records",
    )
    | {
        "failOnDataLoss": "does not apply to tables: lost records are always an error",
        "pushdown": "does not apply to tables, which are filtered after they are computed",
    }
)

_OF_BROKERS: Final = dict.fromkeys(
    (
        "kafkaConsumer.pollTimeoutMs",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "groupIdPrefix",
    ),
    "applies to brokers only; a directory is read from its files",
)

_REFUSED_CLIENT: Final = {
    "auto.offset.reset": "give startingOffsets",
    "key.deserializer": "give keyAs",
    "value.deserializer": "give valueAs",
    "key.serializer": "a read serializes no keys",
    "value.serializer": "a read serializes no values",
    "enable.auto.commit": "a read commits no offsets to a group",
    "interceptor.classes": "interceptors could change the records",
}

_ISOLATION: Final = {level.name.lower(): level for level in IsolationLevel}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableOptions:
    """Options for reading a topic as a table, in its state at a given time.

    Attributes:
        at_ms: The time in ms, inclusive; None for the whole log.
        inexact: What to do with an inexact table: `refuse` or `mark`.
    """

    at_ms: int | None = None
    inexact: str = "refuse"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Options of a read. Offset -2 means the earliest offset, offset -1 means the latest.

    Attributes:
        path: Directory of topics; "" for a read from brokers.
        bootstrap: Brokers, `host:port[,host:port]`; "" for a read of a directory.
        client: Settings of the client under Kafka's names, for brokers.
        store: Settings of the object store of `path`.
        topics: Names of topics; empty if chosen by `pattern` or `assigned`.
        pattern: Regular expression that matches whole names of topics; None if the option is not
            given.
        if_there: Whether topics that don't exist are ignored. If false, a topic that doesn't exist
            is an error.
        assigned: Partitions to read; empty if chosen by `topics` or `pattern`.
        start_offsets: Start offset, inclusive: one offset for all partitions, or an offset for each
            partition; None for the earliest.
        end_offsets: End offset, exclusive: one offset for all partitions, or an offset for each
            partition; None for the latest.
        start_ms: Start of the time range in ms, inclusive: one time for all partitions, or a time
            for each partition; None for no start.
        end_ms: End of the time range in ms, exclusive: one time for all partitions, or a time for
            each partition; None for no end.
        clock: Clock of the time range.
        is_exact: Whether exactly the records in the time range are read. If false, all records are
            read from the first record at or after the range's start up to the first record at or
            after the range's end, exclusive.
        needs_match: Whether it is an error if no record is at or after the start time.
        strict: Whether records without a time are an error.
        columns: Columns of a row, in order.
        min_partitions: Minimum number of splits; approximate for brokers.
        max_records: Maximum number of offsets in a split; None for no maximum.
        split_bytes: Approximate maximum number of bytes of log in a split.
        isolation: READ_COMMITTED reads up to the last stable offset, without records of aborted
            transactions.
        fail_on_data_loss: Whether lost offsets are an error. If false, lost offsets cause a
            warning.
        zone_cache: Folder for zone maps that the directory lacks; None for no folder.
        until_flushed: Whether to read only records that a crash of the log's owner can't lose.
        pushes_down: Whether Spark may push filters down.
        poll_timeout_ms: Maximum time in ms that a task waits for a broker's next records.
        offset_tries: Maximum number of attempts to request offsets from brokers.
        offset_retry_ms: Pause in ms between two attempts to request offsets.
        group_prefix: Prefix of the client's group id.
        table: Options of a table as of a time; None for a read of records.
        serdes: Names of serializers by column (`key`, `value`). A column without an entry is
            binary.
        permissive: Whether cells that can't be converted are null, with the reason in the column
            `REASON`, instead of an error.
        time_texts: The user's texts of the range's times, by time in ms; only for times that were
            given as text.
    """

    path: str = ""
    bootstrap: str = ""
    # `client` and `store` may contain passwords, so the repr omits them.
    client: Mapping[str, str] = field(default_factory=dict, repr=False)
    store: Mapping[str, str] = field(default_factory=dict, repr=False)
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    if_there: bool = False
    assigned: tuple[TopicPartition, ...] = ()
    start_offsets: PartitionValues = None
    end_offsets: PartitionValues = None
    start_ms: PartitionValues = None
    end_ms: PartitionValues = None
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
        """Return a time as the user wrote it.

        Other times, such as the first time in a log, are returned in the user's style: as date and
        time if the user wrote a time as text, otherwise in ms.
        """
        if time_ms in self.time_texts:
            return self.time_texts[time_ms]
        try:
            is_number = not self.time_texts
            return f"{time_ms} ms" if is_number else f"{EPOCH + timedelta(milliseconds=time_ms)}"
        except OverflowError:
            return f"{time_ms} ms"

    @property
    def is_broker(self) -> bool:
        """Whether the read is from brokers, not from a directory."""
        return bool(self.bootstrap)

    @property
    def has_times(self) -> bool:
        """Whether a time range is given."""
        return self.start_ms is not None or self.end_ms is not None


def read_source_options(texts: Mapping[str, str], env: Env | None = None) -> SourceOptions:
    """Parse the options of a read.

    Args:
        texts: Options as Spark passes them.
        env: Environment with the clock for `now` in times; the machine's if None.

    Raises:
        InvalidRequest, InvalidTime: An option is missing, unknown or has an invalid value.
    """
    options = Options(texts, READ_OPTIONS)
    now_ms = (env or os_env()).clock.now_ms()
    start_ms = read_time_option(options, "startingTimestamp", "startingOffsetsByTimestamp", now_ms)
    end_ms = read_time_option(options, "endingTimestamp", "endingOffsetsByTimestamp", now_ms)
    # As in the Kafka connector, a start or end time takes precedence over a start or end offset.
    start_offsets = None if start_ms is not None else read_offset_option(options, START)
    end_offsets = None if end_ms is not None else read_offset_option(options, END)
    topics, topic = options.names("subscribe"), options.text("topic")
    pattern = options.text("subscribePattern")
    assigned = _assigned(options)
    if sum(map(bool, (topics, topic, pattern, assigned))) != 1:
        raise InvalidRequest(
            "give one of the options subscribe, topic, subscribePattern and assign"
        )
    path, bootstrap = _location(options)
    is_exact = options.choice(
        "timeRange",
        {"exact": True, "positions": False},
        # `exact` would read all records after the range's start from brokers.
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
        # Filters on offsets and times must not change the records that a table is computed from.
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
    """Return the options of the requested table; None if no table is requested.

    Raises InvalidRequest for an option that does not apply, InvalidTime for an invalid `asOf`.
    """
    if not options.flag("table", default=False):
        for name in ("asOf", "inexact"):
            if options.text(name) is not None:
                raise InvalidRequest(f"option {name} applies only with table=true")
        return None
    options.refuse(_NOT_OF_TABLES)
    at = options.text("asOf")
    return TableOptions(
        at_ms=None if at is None else parse_point(at, now_ms=now_ms),
        inexact=options.choice("inexact", {"refuse": "refuse", "mark": "mark"}, "refuse"),
    )


def not_of_directories(option: str) -> str:
    """Return the message for an option that applies to brokers but is given with path."""
    return f"option {option} applies to brokers only, but path names a directory; leave it out"


def _location(options: Options) -> tuple[str, str]:
    """Return the option `path`, and the brokers; one of the two is "".

    Raises InvalidRequest in three cases: both are given; neither is given; or an option applies
    only to the other kind of source.
    """
    path, bootstrap = options.location(_NOT_OF_BROKERS, _OF_BROKERS)
    others = options.prefixed("store." if bootstrap else "kafka.").keys() - {"isolation.level"}
    if others:
        if bootstrap:
            raise InvalidRequest(
                f"option store.{min(others)} applies to object stores only, but"
                " kafka.bootstrap.servers names brokers; leave it out"
            )
        raise InvalidRequest(not_of_directories(f"kafka.{min(others)}"))
    return path, bootstrap


def _client(options: Options) -> dict[str, str]:
    settings = options.client(_REFUSED_CLIENT)
    settings.pop("isolation.level", None)
    return settings


def read_columns(options: Options) -> tuple[str, ...]:
    """Return the columns of a row. The scan checks later whether the columns exist.

    Raises:
        InvalidRequest: The column `REASON` is given without mode=permissive, or an option is
            invalid.
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
        raise InvalidRequest(f"column {REASON} applies only with the option mode=permissive")
    return (*columns, REASON) if is_permissive and REASON not in columns else columns


def read_mode(options: Options) -> bool:
    """Return whether cells that can't be converted are null, instead of an error."""
    modes = {"failfast": False, "permissive": True}
    if (options.text("mode") or "").strip().lower() == "dropmalformed":
        raise InvalidRequest(
            "option mode=dropmalformed would drop records without notice: give mode=permissive and"
            f" filter by {REASON} IS NULL"
        )
    return options.choice("mode", modes, "failfast")


def scan_columns(columns: Sequence[str], serdes: Mapping[str, str]) -> tuple[str, ...]:
    """Return the columns that a scan has to read for these columns of a row.

    If the conversion of a cell may fail, the offset is included, because the error names the
    record's offset. If the row has the column `REASON`, columns with a serializer are read even if
    the query does not select them. So the value of `REASON` doesn't depend on the columns that the
    query selects.
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
