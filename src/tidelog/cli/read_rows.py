"""What both ways of `tidelog read` share: its options, and how records become rows."""

from dataclasses import dataclass
from typing import Final

from tidelog.cli import fields, output
from tidelog.cli.choices import Encoding, Format, ReadFormat
from tidelog.cli.output import Cell, Column, Writer
from tidelog.cli.problems import UsageProblem
from tidelog.cli.surroundings import Surroundings
from tidelog.errors import SerdeError
from tidelog.record.record import Record
from tidelog.types import ClockName, IsolationLevel, TopicPartition

VALUE_CHARACTERS: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What `read` reads, and how it shows it.

    Attributes:
        start: First time wanted, or a whole range of time; None for no bound.
        end: Time behind the last one wanted.
        clock: Which of a record's two times both are about.
        offsets: `A..B`, offsets from A up to and without B.
        partition: The only one wanted.
        isolation: Whether open and aborted transactions are seen.
        follow: Go on with what is appended.
        limit: So many records at most.
        format: How records are written.
        zone: Where times without a zone are meant, and how times are printed.
        key: What keys are shown as.
        value: What values are shown as.
        headers: What the values of headers are shown as.
        wide: Do not cut long values in a table.
    """

    start: str | None
    end: str | None
    clock: ClockName
    offsets: str | None
    partition: int | None
    isolation: IsolationLevel
    follow: bool
    limit: int | None
    format: ReadFormat
    zone: str | None
    key: Encoding
    value: Encoding
    headers: Encoding
    wide: bool


_COLUMNS: Final[tuple[Column, ...]] = (
    output.number("partition"),
    output.number("offset"),
    output.time("timestamp"),
    output.time("append_time"),
    output.text("key"),
    output.text("value"),
)
_SCRIPT_COLUMNS: Final = (*_COLUMNS[:4], output.time("create_time"), *_COLUMNS[4:])


class RowMaker:
    """Makes rows of records, as the options want them."""

    def __init__(self, topic: str, options: ReadOptions) -> None:
        self._topic = topic
        self._options = options
        self._is_table = options.format is ReadFormat.TABLE
        decoder = fields.decoders(options.format)
        self._key, self._value = decoder(options.key), decoder(options.value)
        # Headers are JSON also where cells are text, and so are their values.
        self._header = fields.decoders(ReadFormat.JSON)(options.headers)

    def writer(self, surroundings: Surroundings) -> Writer:
        """Where the rows go."""
        columns = _COLUMNS if self._is_table else (*_SCRIPT_COLUMNS, output.text("headers"))
        kind = Format(self._options.format)
        return output.writer(surroundings, columns, kind, zone=self._options.zone)

    def row(self, partition: int, record: Record, append_ms: int | None) -> list[Cell]:
        """Return one record's row.

        Raises:
            SerdeError: A row for a program can't hold the record in the forms of its columns.
        """
        key = self._cell("key", self._key, record.key, partition, record)
        value = self._cell("value", self._value, record.value, partition, record)
        row: list[Cell] = [partition, record.offset, record.timestamp, append_ms]
        if not self._is_table:
            headers: Cell = [
                [one.key, self._cell("headers", self._header, one.value, partition, record)]
                for one in record.headers
            ]
            return [*row, record.create_timestamp, key, value, headers]
        if self._options.wide:
            return [*row, key, value]
        return [*row, *(fields.shortened(cell, VALUE_CHARACTERS) for cell in (key, value))]

    def _cell(
        self, name: str, decode: fields.Decode, data: bytes | None, partition: int, record: Record
    ) -> Cell:
        try:
            return decode(data)
        except SerdeError as error:
            place = f"{TopicPartition(self._topic, partition)} offset {record.offset}"
            raise SerdeError(
                f"{place}: {name}: {error}; --{name}-as bytes writes all of them as base64"
            ) from error


def chosen(topic: str, found: list[TopicPartition], number: int | None) -> list[TopicPartition]:
    """All partitions, or the one of that number; raises UsageProblem for one that is not there."""
    if number is None:
        return found
    if not 0 <= number < len(found):
        raise UsageProblem(f"{topic} has partitions 0 to {len(found) - 1}, not {number}")
    return [found[number]]


def say_untimed(surroundings: Surroundings, count: int | None, clock: ClockName) -> None:
    """Say how many records lie in no range, for want of a time; None where that is not known."""
    if count is None:
        surroundings.say("brokers don't tell how many records have no known append time")
    elif count:
        surroundings.say(f"{count} records met have no time on the {clock} clock: left out")
