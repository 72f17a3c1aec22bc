"""A commit log with a memory for time.

Kafka's files, two clocks: every record can be found, read, kept and counted by when it was created
and by when it arrived. What is named here is public; the rest is private. Names are loaded at
their first use, so that `import tidelog` costs nothing.

>>> import tidelog
>>> with tidelog.open("data", writable=True) as log:  # doctest: +SKIP
...     log.create_topic("flights", partitions=4)
...     log.append("flights", [tidelog.NewRecord(key=b"N14228", value=b"{}")])
...     log.offsets_at("flights", "-6h", clock="append")
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidelog.cluster.remote_asyncio import AsyncRemoteDirectory, connect_async
    from tidelog.cluster.remote_directory import RemoteDirectory, connect
    from tidelog.cluster.tables import table
    from tidelog.directory import Directory, open_directory
    from tidelog.env import Env, ManualClock, os_env
    from tidelog.errors import TidelogError
    from tidelog.server.in_process import broker
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

    open = open_directory  # noqa: A001 - `tidelog.open` reads as it should

__version__ = "0.1.0"

# Where each public name is found; `open` has another name there, to leave the builtin alone.
_HOMES: Final = {
    "AsyncRemoteDirectory": "cluster.remote_asyncio",
    "ClockName": "types",
    "Codec": "types",
    "Directory": "directory",
    "Env": "env",
    "Header": "types",
    "IsolationLevel": "types",
    "ManualClock": "env",
    "NewRecord": "types",
    "OffsetAndTimestamp": "types",
    "RemoteDirectory": "cluster.remote_directory",
    "TidelogError": "errors",
    "TimestampType": "types",
    "TopicPartition": "types",
    "broker": "server.in_process",
    "connect": "cluster.remote_directory",
    "connect_async": "cluster.remote_asyncio",
    "open": "directory",
    "os_env": "env",
    "table": "cluster.tables",
}

__all__ = [
    "AsyncRemoteDirectory",
    "ClockName",
    "Codec",
    "Directory",
    "Env",
    "Header",
    "IsolationLevel",
    "ManualClock",
    "NewRecord",
    "OffsetAndTimestamp",
    "RemoteDirectory",
    "TidelogError",
    "TimestampType",
    "TopicPartition",
    "broker",
    "connect",
    "connect_async",
    "open",
    "os_env",
    "table",
]


def __getattr__(name: str) -> object:
    """Load a public name at its first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(
        import_module(f"tidelog.{home}"), "open_directory" if name == "open" else name
    )
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted([*__all__, "__version__"])
