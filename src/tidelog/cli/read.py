"""`tidelog read`: records of a topic by offset and by time, once or as they come."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Final

from tidelog.cli import times
from tidelog.cli.cluster_options import Place
from tidelog.cli.opening import open_directory
from tidelog.cli.output import ROWS_AT_ONCE, Cell, Writer
from tidelog.cli.problems import UsageProblem
from tidelog.cli.read_rows import ReadOptions, RowMaker, chosen, say_untimed
from tidelog.cli.selection import Selection, Untimed, select
from tidelog.cli.surroundings import Surroundings
from tidelog.directory import Directory
from tidelog.storage.log_reader import LogReader
from tidelog.types import TopicPartition

# How long a follower waits between two looks; appends of another process ring no bell.
FOLLOW_SECONDS: Final = 0.2
_OFFSETS: Final = re.compile(r"(\d{1,19})?\.\.(\d{1,19})?", re.ASCII)


def read(surroundings: Surroundings, place: Place, topic: str, options: ReadOptions) -> None:
    """Print the records of a topic that are wanted: partition by partition, by offset."""
    wanted = _selection(surroundings, options)
    if place.access is not None:
        from tidelog.cli import remote_read

        remote_read.read(surroundings, place.access, topic, options, wanted)
        return
    with open_directory(surroundings, place.data) as directory:
        partitions = _partitions(directory, topic, options.partition)
        if options.format.is_columns:
            from tidelog.cli.arrow import write_arrow

            count = write_arrow(
                surroundings, directory.path, partitions, wanted, options.limit, options.format
            )
            say_untimed(surroundings, count, options.clock)
            return
        _Reading(surroundings, directory, topic, partitions, options).run(wanted)


def _partitions(directory: Directory, topic: str, number: int | None) -> list[TopicPartition]:
    return chosen(topic, directory.log_dir.partitions(topic), number)


def _selection(surroundings: Surroundings, options: ReadOptions) -> Selection:
    if options.follow and options.end is not None:
        raise UsageProblem("--follow has no end; leave --to out")
    if options.follow and options.format.is_columns:
        raise UsageProblem("--follow writes table, json or csv")
    start_ms, end_ms = times.read_bounds(surroundings, options.start, options.end, options.zone)
    start, end = _offsets(options.offsets)
    return Selection(
        start_ms=start_ms,
        end_ms=end_ms,
        clock=options.clock,
        start_offset=start,
        end_offset=end,
        isolation=options.isolation,
    )


def _offsets(text: str | None) -> tuple[int | None, int | None]:
    """The offsets of `A..B`; one number alone is that record."""
    if text is None:
        return None, None
    if text.isascii() and text.isdigit():
        return int(text), int(text) + 1
    found = _OFFSETS.fullmatch(text)
    if found is None:
        raise UsageProblem(f"--offset {text!r}: write A..B (B is not included), A.., ..B or A")
    start, end = (None if side is None else int(side) for side in found.groups())
    if start is not None and end is not None and start > end:
        raise UsageProblem(f"--offset {text}: the end lies before the start")
    return start, end


class _Reading:
    """One run of the command."""

    def __init__(
        self,
        surroundings: Surroundings,
        directory: Directory,
        topic: str,
        partitions: list[TopicPartition],
        options: ReadOptions,
    ) -> None:
        self._surroundings = surroundings
        self._logs = [directory.partition(p.topic, p.partition) for p in partitions]
        self._options = options
        self._left = options.limit
        self._untimed = Untimed()
        self._maker = RowMaker(topic, options)

    def run(self, wanted: Selection) -> None:
        """Write everything wanted, then what comes where that is asked for."""
        out = self._maker.writer(self._surroundings)
        try:
            self._run(out, wanted)
        except KeyboardInterrupt:
            # The way to end a follower; anybody else is told that the output is not whole.
            if not self._options.follow:
                raise
        out.close()
        say_untimed(self._surroundings, self._untimed.count, self._options.clock)

    def _run(self, out: Writer, wanted: Selection) -> None:
        selections = [wanted] * len(self._logs)
        while True:
            nexts = []
            for number, log in enumerate(self._logs):
                self._write(out, log, selections[number])
                nexts.append(_next_offset(log, wanted))
                selections[number] = replace(wanted, start_offset=nexts[-1])
            is_over = wanted.end_offset is not None and min(nexts) >= wanted.end_offset
            if not self._options.follow or self._left == 0 or is_over:
                return
            self._surroundings.wait(FOLLOW_SECONDS)
            for log in self._logs:
                log.refresh()

    def _write(self, out: Writer, log: LogReader, wanted: Selection) -> None:
        rows = self._rows(log, wanted)
        if self._left is not None:
            rows = islice(rows, self._left)
        while self._write_some(out, rows):
            pass

    def _write_some(self, out: Writer, rows: Iterator[list[Cell]]) -> int:
        """Write the next rows, also those that came before an error; how many there were."""
        chunk: list[list[Cell]] = []
        try:
            chunk.extend(islice(rows, ROWS_AT_ONCE))
        finally:
            out.write(chunk)
        if self._left is not None:
            self._left -= len(chunk)
        return len(chunk)

    def _rows(self, log: LogReader, wanted: Selection) -> Iterator[list[Cell]]:
        number = log.topic_partition.partition
        for record, append_ms in select(log, wanted, self._untimed):
            yield self._maker.row(number, record, append_ms)


def _next_offset(log: LogReader, wanted: Selection) -> int:
    """Where a follower goes on."""
    seen = log.end_offset(wanted.isolation)
    return seen if wanted.start_offset is None else max(seen, wanted.start_offset)
