"""`df.write.format("tidelog")` and `df.writeStream.format("tidelog")`: which writer does it.

Rows are checked here by their type; where they go is for `sink_directory` and `broker_sink`.
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

from tidelog.errors import InvalidRequest
from tidelog.spark.options import nearest
from tidelog.spark.sink_options import SinkOptions, read_sink_options
from tidelog.spark.sink_topic import make_missing_topic

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter

# What a read gives beside what a write takes: a topic can be copied without naming columns.
_READ_ONLY: Final = frozenset(
    {
        "offset",
        "timestampType",
        "appendTimestamp",
        "createTimestamp",
        "producerId",
        "producerEpoch",
        "sequence",
        "leaderEpoch",
    }
)
_Kinds: TypeAlias = tuple[type[DataType], ...]
_COLUMNS: Final[dict[str, _Kinds]] = {
    "key": (BinaryType, StringType),
    "value": (BinaryType, StringType),
    "headers": (ArrayType, MapType),
    "topic": (StringType,),
    "partition": (IntegerType, ShortType, LongType),
    "timestamp": (TimestampType, LongType),
}
_WHOLE: Final[_Kinds] = (IntegerType, LongType, ShortType)
# What a column may be that its serializer writes.
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
    given: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> "DataSourceArrowWriter":
    """The writer of a batch, on the driver.

    Raises:
        InvalidRequest: Options or columns that can't be written.
        UnknownTopic: No such topic.
        DirectoryLocked: Another process has the directory open for writing and can't be asked.
    """
    if overwrite:
        raise InvalidRequest('a log is only appended to: use mode("append")')
    options = _read(given, schema)
    make_missing_topic(options)
    if options.bootstrap:
        from tidelog.spark.broker_sink import BrokerWriter

        return BrokerWriter(options)
    from tidelog.spark.sink_commit import ensure_reachable
    from tidelog.spark.sink_directory import DirectoryWriter, new_commit_id

    ensure_reachable(options)
    return DirectoryWriter(options, new_commit_id(options))


def make_stream_writer(
    given: Mapping[str, str], schema: StructType
) -> "DataSourceStreamArrowWriter":
    """The writer of a streaming query, on the driver; Spark asks for it in every batch.

    Output mode `complete` appends all rows of the result in each batch, as Spark's Kafka sink does.

    Raises:
        InvalidRequest: Options or columns that can't be written.
    """
    options = _read(given, schema)
    if options.txn is not None:
        raise InvalidRequest("txnAppId and txnVersion are of batch writes: a query counts itself")
    make_missing_topic(options)
    if options.bootstrap:
        from tidelog.spark.broker_sink import BrokerStreamWriter

        return BrokerStreamWriter(options)
    from tidelog.spark.sink_directory import DirectoryStreamWriter

    return DirectoryStreamWriter(options)


def _read(given: Mapping[str, str], schema: StructType) -> SinkOptions:
    options = read_sink_options(given)
    check_columns(schema, options.topic, options.serdes)
    return options


def check_columns(
    schema: StructType, topic: str | None, serdes: Mapping[str, str] | None = None
) -> None:
    """Make sure that rows of this type can be written; raises InvalidRequest.

    Args:
        schema: Their type.
        topic: The topic of all rows, None where each names its own.
        serdes: Names of serializers of the columns `key` and `value`.
    """
    names = schema.fieldNames()
    known = _COLUMNS | {name: _SERDE_KINDS[serde] for name, serde in (serdes or {}).items()}
    for field in schema:
        if field.name in _READ_ONLY:
            continue
        kinds = known.get(field.name)
        if kinds is None:
            raise InvalidRequest(f"column {field.name}: {nearest(field.name, _COLUMNS)}")
        if not isinstance(field.dataType, kinds):
            allowed = " or ".join(kind.typeName() for kind in kinds)
            found = field.dataType.simpleString()
            raise InvalidRequest(f"column {field.name} is {found}, {allowed} is needed")
    if "value" not in names:
        raise InvalidRequest(f"there is no column value, only {', '.join(names)}")
    if topic is None and "topic" not in names:
        raise InvalidRequest("give the option topic, or a column topic")
