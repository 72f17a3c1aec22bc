"""Where a query reads: the questions that it has to a log, and who answers them.

The protocols are in `tidelog.spark.tasks`; a directory answers in `directory_backend`, brokers in
`broker_backend`.
"""

from collections.abc import Sequence

from tidelog.spark.directory_backend import DirectoryBackend
from tidelog.spark.source_options import SourceOptions
from tidelog.spark.tasks import Backend, Bounds, Task

__all__ = ["Backend", "Bounds", "Task", "open_backend"]


def open_backend(options: SourceOptions, columns: Sequence[str]) -> Backend:
    """The backend that the options name.

    Args:
        options: What was asked for.
        columns: Of the rows that tasks will read.

    Raises:
        ConfigError, InvalidRequest: Settings or columns that can't be had there.
        MissingDependency: What reaches brokers or the object store is not installed.
    """
    if options.is_broker:
        from tidelog.spark.broker_backend import BrokerBackend

        return BrokerBackend(options, columns)
    return DirectoryBackend(options, columns)
