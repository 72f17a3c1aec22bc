"""`tidelog offsets`: from a point in time to an offset in each partition."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from tidelog.cli import options, output
from tidelog.cli.options import Format
from tidelog.cli.output import Cell
from tidelog.cli.places import Place, open_directory, open_remote
from tidelog.cli.surroundings import Surroundings, UsageProblem
from tidelog.config.values import EARLIEST, LATEST
from tidelog.directory import Directory
from tidelog.types import (
    NO_TIMESTAMP,
    ClockName,
    IsolationLevel,
    OffsetAndTimestamp,
    TopicPartition,
)

if TYPE_CHECKING:
    from tidelog.remote.remote_directory import RemoteDirectory

MAX: Final = "max"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of each partition.

    Attributes:
        at: A point in time, or `earliest`, `latest`, `max` (the record with the largest time).
        clock: Which of a record's two times is meant.
        isolation: For `latest`: whether open transactions count.
        zone: Where times without a zone are meant, and how times are printed.
    """

    at: str
    clock: ClockName
    isolation: IsolationLevel
    zone: str | None


def find_offsets(
    surroundings: Surroundings, place: Place, topic: str, question: Question, kind: Format
) -> None:
    """Print the offset that each partition of a topic has at a time."""
    columns = [
        output.number("partition"),
        output.number("offset"),
        output.time("time"),
        output.number("leader_epoch"),
    ]
    unknown: list[int | None] | None = None
    counts = question.clock is ClockName.APPEND and question.at not in (EARLIEST, LATEST)
    if place.access is not None:
        with open_remote(surroundings, place.access) as cluster:
            found = _remote_answers(surroundings, cluster, topic, question)
            if counts:
                unknown = _unknown(cluster, cluster.partitions(topic), found)
    else:
        with open_directory(surroundings, place.data) as directory:
            found = _answers(surroundings, directory, topic, question)
            if counts:
                unknown = _unknown(directory, directory.log_dir.partitions(topic), found)
    rows: list[list[Cell]] = [_row(number, answer) for number, answer in enumerate(found)]
    if unknown is not None:
        columns.append(output.number("without_time"))
        for row, count in zip(rows, unknown, strict=True):
            row.append(count)
    output.print_rows(surroundings, columns, rows, kind, zone=question.zone)
    total = sum(count or 0 for count in unknown or ())
    if total:
        surroundings.say(
            f"the append time of {total} records before these offsets is unknown; any of"
            " them may be that late"
        )
    if unknown is not None and None in unknown:
        surroundings.say(
            "brokers don't tell how many records before these offsets have no known append time;"
            " any of them may be that late"
        )
    missing = sum(answer is None for answer in found)
    if missing:
        surroundings.say(
            f"{missing} of {len(found)} partitions have no record at or after {question.at}"
        )


def _unknown(
    directory: "Directory | RemoteDirectory",
    names: list[TopicPartition],
    found: list[OffsetAndTimestamp | None],
) -> list[int | None]:
    """For each partition how many records before the answer have no append time; None: not told."""
    return [
        directory.without_append_time(name) if answer is None else answer.without_time
        for name, answer in zip(names, found, strict=True)
    ]


def _answers(
    surroundings: Surroundings, directory: Directory, topic: str, question: Question
) -> list[OffsetAndTimestamp | None]:
    partitions = directory.log_dir.partitions(topic)
    if question.at == MAX:
        _check_max(question)
        return [directory.partition(topic, p.partition).max_timestamp() for p in partitions]
    return _found(surroundings, directory, partitions, question)


def _remote_answers(
    surroundings: Surroundings, cluster: "RemoteDirectory", topic: str, question: Question
) -> list[OffsetAndTimestamp | None]:
    partitions = cluster.partitions(topic)
    if question.at == MAX:
        _check_max(question)
        largest = cluster.cluster.max_timestamps(partitions)
        return [largest[p] for p in partitions]
    return _found(surroundings, cluster, partitions, question)


def _check_max(question: Question) -> None:
    if question.clock is ClockName.APPEND:
        raise UsageProblem("max is about the record clock; by append time the last is latest")


def _found(
    surroundings: Surroundings,
    directory: "Directory | RemoteDirectory",
    partitions: list[TopicPartition],
    question: Question,
) -> list[OffsetAndTimestamp | None]:
    """Answers that a directory and a cluster give in the same way."""
    if question.at == EARLIEST:
        starts = directory.beginning_offsets(partitions)
        return [OffsetAndTimestamp(starts[p], NO_TIMESTAMP) for p in partitions]
    if question.at == LATEST:
        ends = directory.end_offsets(partitions, isolation=question.isolation)
        return [OffsetAndTimestamp(ends[p], NO_TIMESTAMP) for p in partitions]
    time_ms = options.read_point(surroundings, question.at, question.zone)
    asked = dict.fromkeys(partitions, time_ms)
    if isinstance(directory, Directory):
        answers = directory.log_dir.offsets_for_times(asked, clock=question.clock)
    else:
        answers = directory.offsets_for_times(asked, clock=question.clock)
    return [answers[p] for p in partitions]


def _row(number: int, answer: OffsetAndTimestamp | None) -> list[Cell]:
    if answer is None:
        return [number, None, None, None]
    return [number, answer.offset, answer.timestamp, answer.leader_epoch]
