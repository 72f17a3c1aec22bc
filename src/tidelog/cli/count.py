"""`tidelog count`: how many records lie in a range of time, exactly."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tidelog.cli import options, output
from tidelog.cli.options import Format, parse_target, partitions_of
from tidelog.cli.output import chosen
from tidelog.cli.places import Access, Place, open_directory, open_remote
from tidelog.cli.surroundings import Surroundings, UsageProblem
from tidelog.scan import ScanStats
from tidelog.scan.count import Count, PartitionCount
from tidelog.scan.count import count as count_records
from tidelog.scan.split import Wanted
from tidelog.timespec import OPEN_END, OPEN_START
from tidelog.types import ClockName, IsolationLevel, TopicPartition

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
    surroundings: Surroundings, place: Place, target: str, question: Question, kind: Format
) -> None:
    """Print the count of each partition; a table ends with their sum where there are several."""
    start_ms, end_ms = options.read_bounds(
        surroundings, question.start, question.end, question.zone
    )
    wanted = Wanted(
        start_ms=None if start_ms == OPEN_START else start_ms,
        end_ms=None if end_ms == OPEN_END else end_ms,
    )
    if place.access is None:
        found = _counted(surroundings, place.data, target, question, wanted)
    else:
        found = _fetched(surroundings, place.access, target, question, wanted)
    rows: list[list[Cell]] = [
        [name.partition, one.records, one.without_time, one.told, one.log_bytes, one.sidecar_bytes]
        for name, one in found.partitions.items()
    ]
    if kind is Format.TABLE and len(rows) > 1:
        columns = ([row[place] for row in rows] for place in range(1, 6))
        rows.append([None, *(_sum(column) for column in columns)])
    names = ("partition", "records", "without_time", "told", "log_bytes_read", "sidecar_bytes_read")
    output.print_rows(surroundings, [output.number(name) for name in names], rows, kind)
    for line in found.reports:
        surroundings.say(f"note: {line}")
    if any(one.without_time is None for one in found.partitions.values()):
        surroundings.say("brokers don't tell how many records have no known append time")
    elif found.without_time:
        number = f"{'at least ' if found.is_least else ''}{found.without_time}"
        surroundings.say(
            f"{number} records have no time on the {question.clock} clock and lie in no range"
        )


def _sum(column: "list[Cell]") -> int | None:
    """The sum of a column, None where a number of it is not known."""
    return None if None in column else sum(int(str(cell)) for cell in column)


def _counted(
    surroundings: Surroundings, data: str | None, target: str, question: Question, wanted: Wanted
) -> Count:
    topic, number = parse_target(target)
    with open_directory(surroundings, data) as directory:
        return count_records(
            directory.log_dir,
            partitions_of(directory, topic, number),
            wanted=wanted,
            clock=question.clock,
            isolation=question.isolation,
            zone_cache=question.zone_cache,
        )


def _fetched(
    surroundings: Surroundings, access: Access, target: str, question: Question, wanted: Wanted
) -> Count:
    """Counted by fetching the records: brokers can't count."""
    if question.zone_cache is not None:
        raise UsageProblem("--zone-cache is about a directory's files; leave it out")
    topic, number = parse_target(target)
    found: dict[TopicPartition, PartitionCount] = {}
    with open_remote(surroundings, access) as cluster:
        for name in chosen(topic, cluster.partitions(topic), number):
            stats = ScanStats()
            scan = cluster.scan(
                name,
                start=wanted.start_ms,
                end=wanted.end_ms,
                clock=question.clock,
                columns=("offset",),
                isolation=question.isolation,
            )
            found[name] = PartitionCount(
                records=sum(batch.num_rows for batch in scan.to_arrow(stats=stats)),
                without_time=scan.without_time(stats),
                told=0,
                log_bytes=stats.log_bytes,
                sidecar_bytes=0,
            )
    return Count(partitions=found)
