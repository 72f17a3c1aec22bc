"""`tidelog.table`: a topic as a table as of a time, wherever it is."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tidelog.arguments import reads_arguments
from tidelog.cluster.remote_directory import RemoteDirectory
from tidelog.directory import Directory, When
from tidelog.env import Env
from tidelog.objects import env_for, local_path
from tidelog.timespec import parse_point
from tidelog.types import ClockName, TopicPartition

if TYPE_CHECKING:
    from tidelog.keyed import Table


@reads_arguments()
def table(  # noqa: PLR0913 - one keyword for each way to choose
    source: str | Directory | RemoteDirectory,
    topic: str | TopicPartition,
    *,
    at: When | None = None,
    clock: str = ClockName.RECORD,
    columns: Sequence[str] | None = None,
    inexact: str = "refuse",
    env: Env | None = None,
    store_options: Mapping[str, str] | None = None,
) -> "Table":
    """A topic as a table as of a time: the winning record of each key (docs/tables.md).

    Args:
        source: A directory of topics, by path, URL or open, or a cluster (`tidelog.connect`).
        topic: Its name, or one of its partitions.
        at: The time, in ms or as text; all that the log holds where None.
        clock: Which of a record's two times it is about: `record` or `append`.
        columns: Names out of `tidelog.scan.ALL_COLUMNS`; the usual ones where None.
        inexact: `refuse` or `mark`, see `Directory.table`.
        env: Files, clock and randomness, where `source` is a path; the machine's where None.
        store_options: Settings of the object store that a URL names.

    Raises:
        As `Directory.table`.
    """
    if not isinstance(source, str):
        return source.table(topic, at=at, clock=clock, columns=columns, inexact=inexact)
    from tidelog.keyed import DirectoryHome, Table

    path = local_path(source)
    found = env_for(path, env, store_options)
    now_ms = found.clock.now_ms()
    return Table(
        home=DirectoryHome(path, found),
        topic=topic,
        at_ms=parse_point(at, now_ms=now_ms) if isinstance(at, str) else at,
        clock=ClockName(clock),
        columns=columns,
        inexact=inexact,
    )
