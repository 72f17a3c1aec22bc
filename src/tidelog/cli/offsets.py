"""`tidelog offsets`: from a point in time to an offset in each partition."""

from tidelog.cli import output, times
from tidelog.cli.choices import Format
from tidelog.cli.opening import open_directory
from tidelog.cli.output import Cell
from tidelog.cli.problems import UsageProblem
from tidelog.cli.surroundings import Surroundings
from tidelog.directory import Directory
from tidelog.types import ClockName, IsolationLevel, OffsetAndTimestamp

EARLIEST = "earliest"
LATEST = "latest"
MAX = "max"


def find_offsets(  # noqa: PLR0913 - one argument for each option
    surroundings: Surroundings,
    data: str | None,
    topic: str,
    at: str,
    *,
    clock: ClockName,
    isolation: IsolationLevel,
    kind: Format,
    zone: str | None,
) -> None:
    """Print the offset that each partition of a topic has at a time.

    Args:
        surroundings: Clock, files and streams.
        data: The directory.
        topic: Its name.
        at: A point in time, or `earliest`, `latest`, `max` (the record with the largest time).
        clock: Which of a record's two times is meant.
        isolation: For `latest`: whether open transactions count.
        kind: How the rows are written.
        zone: Where times without a zone are meant, and how times are printed.
    """
    columns = [
        output.number("partition"),
        output.number("offset"),
        output.time("time"),
        output.number("leader_epoch"),
    ]
    with open_directory(surroundings, data) as directory:
        found = _answers(surroundings, directory, topic, at, clock, isolation, zone)
    rows: list[list[Cell]] = [_row(number, answer) for number, answer in enumerate(found)]
    output.print_rows(surroundings, columns, rows, kind, zone=zone)
    missing = sum(answer is None for answer in found)
    if missing:
        surroundings.say(f"{missing} of {len(found)} partitions have no record at or after {at}")


def _answers(  # noqa: PLR0913 - one argument for each thing that an answer depends on
    surroundings: Surroundings,
    directory: Directory,
    topic: str,
    at: str,
    clock: ClockName,
    isolation: IsolationLevel,
    zone: str | None,
) -> list[OffsetAndTimestamp | None]:
    partitions = directory.log_dir.partitions(topic)
    if at == EARLIEST:
        starts = directory.beginning_offsets(partitions)
        return [OffsetAndTimestamp(starts[p], -1) for p in partitions]
    if at == LATEST:
        ends = directory.end_offsets(partitions, isolation=isolation)
        return [OffsetAndTimestamp(ends[p], -1) for p in partitions]
    if at == MAX:
        if clock is ClockName.APPEND:
            raise UsageProblem("max is about the record clock; by append time the last is latest")
        return [directory.partition(topic, p.partition).max_timestamp() for p in partitions]
    time_ms = times.read_point(surroundings, at, zone)
    answers = directory.offsets_for_times(dict.fromkeys(partitions, time_ms), clock=clock)
    return [answers[p] for p in partitions]


def _row(number: int, answer: OffsetAndTimestamp | None) -> list[Cell]:
    if answer is None:
        return [number, None, None, None]
    return [number, answer.offset, answer.timestamp, answer.leader_epoch]
