"""Partitions that a command can't read completely; the command still reads the other partitions."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeVar

import click

from tidelog.amounts import plural, verb
from tidelog.cli.options import option_names, state_in_answer_zone
from tidelog.cli.surroundings import Surroundings, describe
from tidelog.errors import (
    CorruptData,
    InexactTable,
    MissingFile,
    OffsetsGone,
    StorageFailure,
    TidelogError,
    UnsupportedCompression,
)
from tidelog.types import TopicPartition

_Item = TypeVar("_Item")

# Errors that end the read of one partition; other partitions are still read.
UNREADABLE: Final = (CorruptData, OffsetsGone, StorageFailure, UnsupportedCompression)

_CUT: Final = "records from the damage on were left out"
NO_RECORDS: Final = "its records were left out"
NO_ROWS: Final = "its rows were left out, because they depend on all of its records"
_SOME_ROWS: Final = "some of its rows are missing"
# Maximum number of partitions that a note names.
_NAMED_MAX: Final = 3


class Damage:
    """Partitions that can't be read to the end of their range, each with its first error.

    `absent` is the error for partitions without a directory; None if every partition has one.
    """

    def __init__(
        self,
        surroundings: Surroundings,
        partitions: Sequence[TopicPartition],
        *,
        absent: MissingFile | None = None,
    ) -> None:
        self._surroundings = surroundings
        self._count = len(partitions)
        self._errors: dict[TopicPartition, tuple[TidelogError, str]] = {}
        self._printed = 0
        self._absent = absent
        self._is_absent = absent is not None

    def __bool__(self) -> bool:
        return bool(self._errors) or self._is_absent

    @property
    def is_total(self) -> bool:
        """Whether there are partitions, and none can be read completely."""
        return bool(self._errors) and len(self._errors) == self._count

    @property
    def left_out_text(self) -> str:
        """Which partitions were left out, as a clause; empty if none was."""
        if not self._errors:
            return ""
        first = next(iter(self._errors))
        if len(self._errors) == 1:
            return f"{first} was left out"
        return f"{plural(len(self._errors), 'partition')} were left out"

    def has(self, name: TopicPartition) -> bool:
        """Whether a partition has an error."""
        return name in self._errors

    def add(self, name: TopicPartition, error: TidelogError, effect: str = _CUT) -> None:
        """Store a partition's first error, which `say` prints; ignore its later errors."""
        self._errors.setdefault(name, (error, effect))

    def until(self, name: TopicPartition, content: Iterable[_Item]) -> Iterator[_Item]:
        """Yield a partition's content; if reading it fails, add the error and end."""
        try:
            yield from content
        except UNREADABLE as error:
            self.add(name, error)

    def rows(self, name: TopicPartition, content: Iterable[_Item]) -> Iterator[_Item]:
        """Yield the rows of a partition's table; if reading them fails, add the error and end.

        Each row depends on all records of the partition, so damage is found before the first row.
        Damage of append times makes the table inexact, which is an error of this partition, too.
        """
        effect = NO_ROWS
        try:
            for item in content:
                effect = _SOME_ROWS
                yield item
        except (*UNREADABLE, InexactTable) as error:
            self.add(name, error, effect)

    def say(self) -> None:
        """Print the new errors."""
        if self._absent is not None:
            self._surroundings.fail(*describe(self._absent)[1:])
            self._absent = None
        context = click.get_current_context()
        new = [*self._errors.items()][self._printed :]
        refused = [name for name, (error, _) in new if isinstance(error, InexactTable)]
        for name, (error, effect) in new:
            if name in refused[1:]:
                continue  # the errors have nearly the same text
            state_in_answer_zone(error, context)
            _, text, hint = describe(error, option_names(context.command))
            self._surroundings.fail(text, hint)
            if self._count > 1:
                self._surroundings.note(f"{name}: {effect}")
        if len(refused) > 1:
            others = refused[1:]
            named = ", ".join(map(str, others[:_NAMED_MAX]))
            more = len(others) - _NAMED_MAX
            named += f" and {plural(more, 'more partition')}" if more > 0 else ""
            rows = verb(len(others), "its rows were", "their rows were")
            self._surroundings.note(f"{named}: {rows} left out, because the table is not exact")
        self._printed = len(self._errors)
