"""Sink of `format("tidelog")`, for batch and stream: checks columns, and chooses the writer.

On the driver, this module checks the types of rows, and creates a missing topic
(`createPartitions`). The writers are in `directory_sink` and `broker_sink`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, TypeAlias

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from tidelog.errors import DirectoryLocked, InvalidRequest, TopicExists, UnknownTopic
from tidelog.spark.options import REASON, nearest
from tidelog.spark.rows import TYPES
from tidelog.spark.sink_options import SinkOptions, read_sink_options
from tidelog.storage.directory.topic_registry import NewTopic, check_new

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter


def make_missing_topic(options: "SinkOptions") -> None:
    """Create the topic of a write if it is missing and `createPartitions` is given.

    Raises:
        InvalidTopic, InvalidPartitions, ConfigError: The topic can't be created with these options;
            nothing was changed.
        InvalidRequest: The directory does not exist.
        DirectoryLocked: Another process has locked the directory; only that process can create
            topics.
        NotAuthorized, ClusterFailure: The brokers refuse a request, or can't be reached.
    """
    topic, partitions = options.topic, options.create
    if topic is None or partitions is None:
        return
    check_new(NewTopic(topic, partitions, options.create_config))
    if options.bootstrap:
        _make_at_brokers(options, topic, partitions)
    else:
        _make_in_directory(options, topic, partitions)


def _make_in_directory(options: "SinkOptions", topic: str, partitions: int) -> None:
    from tidelog.storage.directory.log_dir import LogDir, LogDirOptions

    env = options.env()
    with LogDir.open(options.path, env=env) as log_dir:
        if topic in log_dir.topics():
            return
    try:
        writable = LogDirOptions(writable=True)
        with LogDir.open(options.path, env=env, options=writable) as log_dir:
            if topic not in log_dir.topics():
                log_dir.create_topic(topic, partitions=partitions, config=options.create_config)
    except DirectoryLocked as error:
        error.add_note(
            f"topic {topic} does not exist, and only the process that has locked the directory can"
            " create it"
        )
        raise


def _make_at_brokers(options: "SinkOptions", topic: str, partitions: int) -> None:
    from tidelog.remote.cluster import connect
    from tidelog.remote.topics import create
    from tidelog.spark.broker_sink import client_settings
    from tidelog.spark.transaction_markers import partition_count

    with connect(options.bootstrap, client_settings(options.client)) as cluster:
        try:
            partition_count(cluster, topic)
        except UnknownTopic:
            try:
                create(cluster, topic, partitions=partitions, config=options.create_config)
            except TopicExists:
                return  # another write, which runs at the same time, has created the topic


_Kinds: TypeAlias = tuple[type[DataType], ...]

_COLUMNS: Final[dict[str, _Kinds]] = {
    "key": (BinaryType, StringType),
    "value": (BinaryType, StringType),
    "headers": (ArrayType, MapType),
    "topic": (StringType,),
    "partition": (IntegerType, ShortType, LongType),
    "timestamp": (TimestampType, LongType),
}

# Columns that a read returns and a write ignores. So rows that were read can be written without
# dropping columns.
_READ_ONLY: Final = TYPES.keys() - _COLUMNS.keys() - {REASON}

_WHOLE: Final[_Kinds] = (IntegerType, LongType, ShortType)

# Column types that a serializer can encode, by the serializer's name.
_SERDE_KINDS: Final[Mapping[str, _Kinds]] = {
    "bytes": (BinaryType, StringType),
    "string": (StringType,),
    "int32": _WHOLE,
    "int64": _WHOLE,
    "double": (DoubleType, FloatType, *_WHOLE),
    "uuid": (StringType,),
    "json": (StringType,),
}


def make_writer(
    texts: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> "DataSourceArrowWriter":
    """Return the writer of a batch write. Runs on the driver.

    Raises:
        InvalidRequest: An option is invalid, a column can't be written, the mode is `overwrite`, or
            the directory does not exist.
        UnknownTopic: The topic does not exist in the directory. For brokers, this function does not
            raise the error, but the tasks do.
        DirectoryLocked: Another process has locked the directory and serves no control channel.
        The errors of `make_missing_topic`.
    """
    if overwrite:
        raise InvalidRequest('tidelog only appends: use mode("append")')
    options = _read(texts, schema)
    make_missing_topic(options)
    if options.bootstrap:
        from tidelog.spark.broker_sink import BrokerWriter

        return BrokerWriter(options)
    from tidelog.spark.directory_sink import DirectoryWriter, ensure_reachable, new_commit_id

    ensure_reachable(options)
    return DirectoryWriter(options, new_commit_id(options))


def make_stream_writer(
    texts: Mapping[str, str], schema: StructType
) -> "DataSourceStreamArrowWriter":
    """Return the writer of a streaming query; runs on the driver, once for each batch.

    In output mode `complete`, each batch appends all rows of the result, as Spark's Kafka sink
    does.

    Raises:
        InvalidRequest: An option is invalid or only for batch writes, or a column can't be written.
        The errors of `make_missing_topic`.
    """
    options = _read(texts, schema)
    if options.txn is not None:
        raise InvalidRequest(
            "txnAppId and txnVersion are for batch writes: a streaming query numbers its batches"
        )
    make_missing_topic(options)
    if options.bootstrap:
        from tidelog.spark.broker_sink import BrokerStreamWriter

        return BrokerStreamWriter(options)
    from tidelog.spark.directory_sink import DirectoryStreamWriter

    return DirectoryStreamWriter(options)


def _read(texts: Mapping[str, str], schema: StructType) -> SinkOptions:
    options = read_sink_options(texts)
    check_columns(schema, options.topic, options.serdes)
    return options


def check_columns(
    schema: StructType, topic: str | None, serdes: Mapping[str, str] | None = None
) -> None:
    """Raise InvalidRequest if rows of this type can't be written.

    Args:
        schema: Type of the rows.
        topic: Topic of all rows; None if each row has a topic.
        serdes: Names of serializers of the columns `key` and `value`.
    """
    names = schema.fieldNames()
    types = _COLUMNS | {name: _SERDE_KINDS[serde] for name, serde in (serdes or {}).items()}
    for field in schema:
        if field.name in _READ_ONLY:
            continue
        kinds = types.get(field.name)
        if kinds is None:
            raise InvalidRequest(f"column {field.name}: {nearest(field.name, _COLUMNS)}")
        if not isinstance(field.dataType, kinds):
            allowed = " or ".join(kind.typeName() for kind in kinds)
            type_text = field.dataType.simpleString()
            raise InvalidRequest(f"column {field.name} has type {type_text}; it must be {allowed}")
    if "value" not in names:
        only = f", only {', '.join(map(repr, names))}" if names else ""
        raise InvalidRequest(f"there is no column 'value'{only}")
    if topic is None and "topic" not in names:
        raise InvalidRequest("give the option topic, or a column topic")
