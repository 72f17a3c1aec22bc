"""`tidelog count`: how many records lie in a range of time, exactly."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.cli import output, times
from tidelog.cli.choices import Format
from tidelog.cli.opening import open_directory
from tidelog.cli.surroundings import Surroundings
from tidelog.cli.targets import parse_target, partitions_of
from tidelog.scan.count import count as count_records
from tidelog.scan.split import Wanted
from tidelog.timespec import OPEN_END, OPEN_START
from tidelog.types import ClockName, IsolationLevel

if TYPE_CHECKING:
    from tidelog.cli.output import Cell


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked.

    Attributes:
        start: First time, or a whole range A..B; None for no bound.
        end: Time to stop before; None for no bound.
        clock: Which of a record's two times is meant.
        isolation: READ_COMMITTED leaves out aborted and open transactions.
        zone: Where times without a zone are meant.
        zone_cache: Folder for zone maps that the directory doesn't have.
    """

    start: str | None
    end: str | None
    clock: ClockName
    isolation: IsolationLevel
    zone: str | None
    zone_cache: str | None


def count(
    surroundings: Surroundings, data: str | None, target: str, question: Question, kind: Format
) -> None:
    """Print the count of each partition; a table ends with their sum where there are several."""
    topic, number = parse_target(target)
    start_ms, end_ms = times.read_bounds(surroundings, question.start, question.end, question.zone)
    with open_directory(surroundings, data) as directory:
        found = count_records(
            directory.log_dir,
            partitions_of(directory, topic, number),
            wanted=Wanted(
                start_ms=None if start_ms == OPEN_START else start_ms,
                end_ms=None if end_ms == OPEN_END else end_ms,
            ),
            clock=question.clock,
            isolation=question.isolation,
            zone_cache=question.zone_cache,
        )
    rows: list[list[Cell]] = [
        [name.partition, one.records, one.without_time, one.told, one.log_bytes, one.sidecar_bytes]
        for name, one in found.partitions.items()
    ]
    if kind is Format.TABLE and len(rows) > 1:
        sums = (sum(int(str(row[place])) for row in rows) for place in range(1, 6))
        rows.append([None, *sums])
    names = ("partition", "records", "without_time", "told", "log_bytes_read", "sidecar_bytes_read")
    output.print_rows(surroundings, [output.number(name) for name in names], rows, kind)
    for line in found.reports:
        surroundings.say(f"note: {line}")
    if found.without_time:
        surroundings.say(
            f"{found.without_time} records have no time on the {question.clock} clock and lie in no"
            " range"
        )
