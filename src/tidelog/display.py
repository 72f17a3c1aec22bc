"""Shows public objects in a REPL and in a notebook, as short texts and small HTML tables.

The functions only format their arguments. They read no log. Text from records and users is escaped
as in the terminal (`tidelog.html_cells.html_text`). The printed table of records has no column for
topic, partition or timestamp type if all shown records have the same value. The table leaves out
append times if all append times are unknown. Omitting a column from the printed table does not
change the records. `amounts`, `html_cells` and `timespec` are imported only when an object is
printed, because every start of a broker loads this module.
"""

from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final, Protocol, TypeVar
from uuid import UUID

from tidelog.types import ClockName, OffsetAndTimestamp, TimestampType, TopicPartition

# Maximum number of topics or partitions that are shown.
LINES_SHOWN: Final = 20
# Maximum number of records that are shown.
RECORDS_SHOWN: Final = 5


def rest_text(count: int, lines: int = LINES_SHOWN) -> str:
    """Return a note on how many lines are left out; an empty text if no line is left out."""
    return f"and {count - lines:,} more" if count > lines else ""


# -- topics ------------------------------------------------------------------------------------


class _Topic(Protocol):
    """Attributes shared by topics of a directory and of a cluster."""

    @property
    def name(self) -> str: ...
    @property
    def topic_id(self) -> UUID | None: ...
    @property
    def partitions(self) -> int: ...
    @property
    def given(self) -> Mapping[str, str]: ...
    @property
    def foreign(self) -> bool: ...


def settings_text(topic: _Topic) -> str:
    """Return the settings that are set for the topic itself, on one line."""
    if topic.foreign:
        return "settings unknown: created by another program"
    return ", ".join(f"{key}={text}" for key, text in topic.given.items()) or "default settings"


def _facts_text(topic: _Topic) -> str:
    """Return a topic's number of partitions and its settings, on one line."""
    from tidelog.amounts import plural

    return f"{plural(topic.partitions, 'partition')}, {settings_text(topic)}"


class TopicDisplay:
    """Base class of topics: a REPL shows one line, a notebook shows a small table."""

    __slots__ = ()

    def __repr__(self: _Topic) -> str:
        return f"{type(self).__name__}({self.name!r}, {_facts_text(self)})"

    def _repr_html_(self: _Topic) -> str:
        """Return the topic as an HTML table for a notebook."""
        return topics_html(f"Topic {self.name}", [self])


class Topics(dict[str, "Kind"]):
    """Topics by name; a REPL shows the first topics as lines, a notebook shows a table."""

    def __repr__(self) -> str:
        width = max(map(len, self), default=0)
        lines = [self._caption()]
        topics = islice(self.values(), LINES_SHOWN)
        lines += [f"  {topic.name:{width}}  {_facts_text(topic)}" for topic in topics]
        if note := rest_text(len(self)):
            lines.append(f"  {note}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the topics as an HTML table for a notebook."""
        first = islice(self.values(), LINES_SHOWN)
        return topics_html(self._caption(), first, rest_text(len(self)))

    def _caption(self) -> str:
        from tidelog.amounts import plural

        return plural(len(self), "topic")


Kind = TypeVar("Kind", bound=_Topic)


def topics_html(caption: str, topics: Iterable[_Topic], note: str = "") -> str:
    """Return topics as an HTML table."""
    from tidelog.html_cells import html_table

    rows = [(t.name, t.partitions, settings_text(t), _id_text(t.topic_id)) for t in topics]
    return html_table(caption, ("topic", "partitions", "settings", "id"), rows, note)


def _id_text(topic_id: UUID | None) -> str | None:
    """Return a topic's id in Kafka's form, as commands print it."""
    if topic_id is None:
        return None
    return urlsafe_b64encode(topic_id.bytes).decode("ascii").rstrip("=")


# -- offsets -----------------------------------------------------------------------------------


class Offsets(dict[TopicPartition, OffsetAndTimestamp | None]):
    """Result of a search by time.

    A REPL shows the first entries as lines, and a notebook shows them as a table.

    Attributes:
        clock: Clock of the search and of the times.
    """

    def __init__(
        self, offsets: Mapping[TopicPartition, OffsetAndTimestamp | None], clock: ClockName
    ) -> None:
        super().__init__(offsets)
        self.clock = clock

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the offsets with their clock."""
        return type(self), (dict(self), self.clock)

    def _caption(self) -> str:
        from tidelog.amounts import plural

        return f"{plural(len(self), 'partition')}, {self.clock.value} clock, times in UTC"

    def __repr__(self) -> str:
        entries = list(islice(self.items(), LINES_SHOWN))
        width = max((len(str(name)) for name, _ in entries), default=0)
        lines = [self._caption()]
        lines += [f"  {name!s:{width}}  {_match_text(match)}" for name, match in entries]
        if note := rest_text(len(self)):
            lines.append(f"  {note}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the offsets as an HTML table for a notebook."""
        from tidelog.html_cells import html_table
        from tidelog.timespec import time_text

        rows = [
            (str(name), None, "no record at or after this time")
            if match is None
            else (str(name), match.offset, f"{time_text(match.timestamp)}{_doubt(match)}")
            for name, match in islice(self.items(), LINES_SHOWN)
        ]
        headings = ("partition", "offset", "time")
        return html_table(self._caption(), headings, rows, rest_text(len(self)))


def _match_text(match: OffsetAndTimestamp | None) -> str:
    if match is None:
        return "no record at or after this time"
    from tidelog.timespec import time_text

    return f"offset {match.offset:,} at {time_text(match.timestamp)}{_doubt(match)}"


def _doubt(match: OffsetAndTimestamp) -> str:
    """Return a note that append times of records before the result are unknown, or empty text."""
    if match.without_time == 0:
        return ""
    if match.without_time is None:
        return "; append times of earlier records may be unknown"
    from tidelog.amounts import plural

    return f"; {plural(match.without_time, 'earlier record')} without a known append time"


# -- records -----------------------------------------------------------------------------------

# Columns in the order in which they are shown. Times are before values, because values may be cut.
_ORDER: Final = ("topic", "partition", "offset", "timestamp", "appendTimestamp", "key", "value")
_CONSTANT: Final = ("topic", "partition", "timestampType")


def records_html(
    caption: str,
    rows: Sequence[Mapping[str, object]],
    columns: Sequence[str],
    *,
    keeps_all: bool,
    note: str = "",
) -> str:
    """Return records as an HTML table.

    Args:
        caption: A line above the table.
        rows: The records, each a dict from column to value; times as `time_text` formats them.
        columns: Names of the columns of the rows.
        keeps_all: Whether to show all columns in the order of `columns`. If false, times come
            before keys and values. Columns for which `_is_constant` is true are then left out, and
            the note states their values.
        note: A line below the table.
    """
    dropped: dict[str, object] = {}
    if not keeps_all and rows:
        columns = sorted(columns, key=lambda name: _ORDER.index(name) if name in _ORDER else 99)
        dropped = {name: rows[0][name] for name in columns if _is_constant(name, rows)}
    columns = [name for name in columns if name not in dropped]
    notes = [note, *_dropped_notes(dropped)]
    headings = [f"{name} (UTC)" if name.lower().endswith("timestamp") else name for name in columns]
    cells = [[row[name] for name in columns] for row in rows]
    from tidelog.html_cells import html_table

    return html_table(caption, headings, cells, "; ".join(filter(None, notes)))


_APPEND: Final = "appendTimestamp"


def _is_constant(name: str, rows: Sequence[Mapping[str, object]]) -> bool:
    """Whether to leave out a column.

    A column is left out if all its values are unknown append times, or if its name is in
    `_CONSTANT` and all rows have the same value.
    """
    if name == _APPEND:
        return all(row[name] == "-" for row in rows)
    return name in _CONSTANT and len({row[name] for row in rows}) == 1


def _dropped_notes(dropped: Mapping[str, object]) -> Iterator[str]:
    if "topic" in dropped and "partition" in dropped:
        yield f"all shown are in {dropped['topic']}-{dropped['partition']}"
    elif "topic" in dropped:
        yield f"topic {dropped['topic']}"
    if dropped.get("timestampType", 0) == TimestampType.LOG_APPEND_TIME:
        yield f"timestamps of type {TimestampType.LOG_APPEND_TIME.config_name}"
    if _APPEND in dropped:
        yield "append times unknown"
