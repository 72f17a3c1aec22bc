"""A commit log in Kafka's files, with two times for every record.

Records can be found, read, retained and counted by timestamp and by append time. The public
API consists of the names in this package and the documented names of `tidelog.scan` and
`tidelog.spark`. All other names are private. Names are loaded at their first use, so
`import tidelog` is cheap.

>>> import tidelog
>>> with tidelog.open("data", writable=True) as log:  # doctest: +SKIP
...     log.create_topic("flights", partitions=4)
...     log.append("flights", [tidelog.NewRecord(key=b"N14228", value=b"{}")])
...     log.offsets_at("flights", "-6h", clock="append")
"""

import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Final

from tidelog.gc_pauses import collection_paused, take_modules_as_old

if TYPE_CHECKING:
    from tidelog.control.channel import ControlFailure
    from tidelog.directory import Directory, open_directory
    from tidelog.env import Env, ManualClock, os_env
    from tidelog.errors import (
        CleaningAborted,
        CleaningFailed,
        ClockJump,
        Closed,
        ClusterFailure,
        ConfigError,
        ConfigErrors,
        CorruptBatch,
        CorruptData,
        CorruptFile,
        CorruptIndex,
        CorruptMessage,
        CorruptRecord,
        CorruptStream,
        DamagedLog,
        DirectoryLocked,
        GroupActive,
        InconsistentTopicId,
        IndexFull,
        InexactTable,
        InvalidChoice,
        InvalidPartitions,
        InvalidProducerEpoch,
        InvalidRecord,
        InvalidRequest,
        InvalidTime,
        InvalidTimestamp,
        InvalidTopic,
        InvalidTxnState,
        LostOffsets,
        MessageTooLarge,
        MissingDependency,
        MissingFile,
        MissingTimestamps,
        NotAuthorized,
        OffsetOutOfRange,
        OffsetOverflow,
        OffsetsGone,
        OutOfOrderSequence,
        PolicyViolation,
        ReadOnly,
        RecordError,
        RecordListTooLarge,
        RefusedRecords,
        RequestError,
        SerdeError,
        StorageFailure,
        StreamTooLong,
        TidelogError,
        TierConflict,
        TopicExists,
        TransactionCoordinatorFenced,
        UnknownGroup,
        UnknownTopic,
        UnsupportedCompression,
        UnsupportedForMessageFormat,
        UnsupportedRequest,
        UnsupportedVersion,
        WriterFenced,
    )
    from tidelog.progress import show_progress
    from tidelog.remote.async_directory import AsyncRemoteDirectory, connect_async
    from tidelog.remote.remote_directory import RemoteDirectory, connect, table
    from tidelog.server.embedded import broker
    from tidelog.types import (
        ClockName,
        Codec,
        Header,
        IsolationLevel,
        NewRecord,
        OffsetAndTimestamp,
        TimeSpan,
        TimestampType,
        TopicPartition,
    )

    open = open_directory  # noqa: A001 - `tidelog.open` reads as it should

__version__ = "0.1.0"

# Maps a public name to the module that defines it. Public names that are not listed here are
# defined in `errors`. `open` is defined as `open_directory`, because a module that defined `open`
# would hide the builtin.
_HOMES: Final = {
    "AsyncRemoteDirectory": "remote.async_directory",
    "ClockName": "types",
    "Codec": "types",
    "ControlFailure": "control.channel",
    "Directory": "directory",
    "Env": "env",
    "Header": "types",
    "IsolationLevel": "types",
    "ManualClock": "env",
    "NewRecord": "types",
    "OffsetAndTimestamp": "types",
    "TimeSpan": "types",
    "RemoteDirectory": "remote.remote_directory",
    "TimestampType": "types",
    "TopicPartition": "types",
    "broker": "server.embedded",
    "connect": "remote.remote_directory",
    "connect_async": "remote.async_directory",
    "open": "directory",
    "os_env": "env",
    "show_progress": "progress",
    "table": "remote.remote_directory",
}

__all__ = [
    "AsyncRemoteDirectory",
    "CleaningAborted",
    "CleaningFailed",
    "ClockJump",
    "ClockName",
    "Closed",
    "ClusterFailure",
    "Codec",
    "ConfigError",
    "ConfigErrors",
    "ControlFailure",
    "CorruptBatch",
    "CorruptData",
    "CorruptFile",
    "CorruptIndex",
    "CorruptMessage",
    "CorruptRecord",
    "CorruptStream",
    "DamagedLog",
    "Directory",
    "DirectoryLocked",
    "Env",
    "GroupActive",
    "Header",
    "InconsistentTopicId",
    "IndexFull",
    "InexactTable",
    "InvalidChoice",
    "InvalidPartitions",
    "InvalidProducerEpoch",
    "InvalidRecord",
    "InvalidRequest",
    "InvalidTime",
    "InvalidTimestamp",
    "InvalidTopic",
    "InvalidTxnState",
    "IsolationLevel",
    "LostOffsets",
    "ManualClock",
    "MessageTooLarge",
    "MissingDependency",
    "MissingFile",
    "MissingTimestamps",
    "NewRecord",
    "NotAuthorized",
    "OffsetAndTimestamp",
    "OffsetOutOfRange",
    "OffsetOverflow",
    "OffsetsGone",
    "OutOfOrderSequence",
    "PolicyViolation",
    "ReadOnly",
    "RecordError",
    "RecordListTooLarge",
    "RefusedRecords",
    "RemoteDirectory",
    "RequestError",
    "SerdeError",
    "StorageFailure",
    "StreamTooLong",
    "TidelogError",
    "TierConflict",
    "TimeSpan",
    "TimestampType",
    "TopicExists",
    "TopicPartition",
    "TransactionCoordinatorFenced",
    "UnknownGroup",
    "UnknownTopic",
    "UnsupportedCompression",
    "UnsupportedForMessageFormat",
    "UnsupportedRequest",
    "UnsupportedVersion",
    "WriterFenced",
    "broker",
    "connect",
    "connect_async",
    "open",
    "os_env",
    "show_progress",
    "table",
]

# Subpackages that the documentation names as `tidelog.NAME...`.
_SUBPACKAGES: Final = ("scan", "spark")


def _let_spark_find_us() -> None:
    """Make Spark's workers use the Python of this process, even if its environment isn't active.

    Without PYSPARK_PYTHON (or Spark's setting `spark.pyspark.python`, which takes precedence) Spark
    runs the first `python3` of the PATH. If that Python doesn't have tidelog, queries fail with
    DATA_SOURCE_NOT_FOUND. PYSPARK_PYTHON must be set before a session starts, so this function is
    called when tidelog is imported.
    """
    is_environment = sys.prefix != sys.base_prefix or os.access(f"{sys.prefix}/conda-meta", os.F_OK)
    if not is_environment or "PYSPARK_PYTHON" in os.environ:
        return
    folders = (folder for folder in os.get_exec_path() if os.access(f"{folder}/python3", os.X_OK))
    first = next(folders, None)
    if first is None or os.path.realpath(first) != os.path.realpath(f"{sys.prefix}/bin"):
        os.environ["PYSPARK_PYTHON"] = sys.executable


_let_spark_find_us()


def __getattr__(name: str) -> object:
    """Load a public name, or a public subpackage, at its first use."""
    if name in _SUBPACKAGES:
        return import_module(f"tidelog.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name, "errors")
    with collection_paused():
        module = import_module(f"tidelog.{home}")
        take_modules_as_old()
    value: object = getattr(module, "open_directory" if name == "open" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names, whether they are loaded or not."""
    return sorted([*__all__, "__version__"])
