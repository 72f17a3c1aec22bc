"""A commit log with a memory for time.

Kafka's files, two clocks: every record can be found, read, kept and counted by when it was created
and by when it arrived. What is named here is public; the rest is private.

>>> import tidelog
>>> with tidelog.open("data", writable=True) as log:  # doctest: +SKIP
...     log.create_topic("flights", partitions=4)
...     log.append("flights", [tidelog.NewRecord(key=b"N14228", value=b"{}")])
...     log.offsets_at("flights", "-6h", clock="append")
"""

from tidelog.directory import Directory
from tidelog.env import Env, ManualClock, os_env
from tidelog.errors import TidelogError
from tidelog.types import (
    ClockName,
    Codec,
    Header,
    IsolationLevel,
    NewRecord,
    OffsetAndTimestamp,
    TimestampType,
    TopicPartition,
)

open = Directory.open  # noqa: A001 - `tidelog.open` reads as it should

__version__ = "0.1.0"

__all__ = [
    "ClockName",
    "Codec",
    "Directory",
    "Env",
    "Header",
    "IsolationLevel",
    "ManualClock",
    "NewRecord",
    "OffsetAndTimestamp",
    "TidelogError",
    "TimestampType",
    "TopicPartition",
    "open",
    "os_env",
]
