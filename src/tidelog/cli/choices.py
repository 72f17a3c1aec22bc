"""The words that options take; plain names, so that `--help` needs no other module."""

from enum import StrEnum
from typing import Final

from tidelog.arguments import Inexact
from tidelog.types import ClockName, Codec, IsolationLevel

__all__ = [
    "CODECS",
    "AuditShow",
    "ClockName",
    "Encoding",
    "Format",
    "Inexact",
    "InputFormat",
    "Isolation",
    "LagShow",
    "LatencyShow",
    "ReadFormat",
    "ReindexShow",
]

CODECS: Final = tuple(codec.config_name for codec in Codec)


class Format(StrEnum):
    """How rows are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


class AuditShow(StrEnum):
    """Which table of an audit is printed."""

    DIFFERENCES = "differences"
    TOPICS = "topics"
    BUCKETS = "buckets"
    CUTS = "cuts"


class LatencyShow(StrEnum):
    """Which table of latencies is printed."""

    HOURS = "hours"
    WATERMARKS = "watermarks"
    TOPICS = "topics"


class LagShow(StrEnum):
    """Which table of a lag report is printed."""

    PARTITIONS = "partitions"
    HOURS = "hours"


class ReindexShow(StrEnum):
    """Which table of a reindex is printed."""

    FINDINGS = "findings"
    PARTITIONS = "partitions"


class ReadFormat(StrEnum):
    """How records are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"

    @property
    def is_columns(self) -> bool:
        """Whether records are written by columns, in binary."""
        return self in (ReadFormat.ARROW, ReadFormat.PARQUET)


class InputFormat(StrEnum):
    """How a file of rows is read."""

    LINES = "lines"
    JSON = "json"
    CSV = "csv"
    ARROW = "arrow"
    PARQUET = "parquet"


class Encoding(StrEnum):
    """What bytes of keys and values are shown as."""

    AUTO = "auto"
    BYTES = "bytes"
    STRING = "string"
    INT32 = "int32"
    INT64 = "int64"
    DOUBLE = "double"
    UUID = "uuid"
    JSON = "json"


class Isolation(StrEnum):
    """Which records of transactions are seen, in the words of Kafka's consumers."""

    READ_UNCOMMITTED = "read_uncommitted"
    READ_COMMITTED = "read_committed"

    @property
    def level(self) -> IsolationLevel:
        """The level that storage knows."""
        return IsolationLevel[self.name]
