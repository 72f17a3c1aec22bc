"""What groups write in one turn of the loop goes into one batch: a group commit.

When a group changes, all its members ask within milliseconds, and each of them is written about.
Whoever writes first in a turn is written at once, so that who is alone doesn't wait. What comes
behind it in the same turn is gathered, and written when some have come together, or the turn is
over; only then is it answered.

Source: Kafka 4.3's coordinator runtime does so for `group.coordinator.append.linger.ms`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from tidelog.error_codes import ErrorCode
from tidelog.server.groups.loop_turn import LoopTurn
from tidelog.server.groups.records import GroupRecord
from tidelog.server.groups.reply import Reply

# A batch of these fits wherever a single request's does, and is soon compressed and written.
GATHERED_BYTES_MAX: Final = 32 << 10
# Who is answered early asks on, or lets others, while the broker works on for those behind it.
GATHERED_REPLIES_MAX: Final = 8
# Of a record, beside key and value: more than its lengths, deltas and attributes take.
_RECORD_BYTES: Final = 32

Write = Callable[[int, Sequence[GroupRecord]], Reply[ErrorCode]]


class Topic(Protocol):
    """The topic that is written to."""

    def takes(self, number: int) -> bool:
        """Whether a partition may be written to now."""
        ...

    def lose(self, number: int) -> None:
        """What is known of a partition is to be read again."""
        ...


@dataclass(slots=True)
class _Gathered:
    """What waits for a partition: records in order, and who is told of them."""

    records: list[GroupRecord] = field(default_factory=list)
    replies: list[Reply[ErrorCode]] = field(default_factory=list)
    size_bytes: int = 0

    def is_full_for(self, size_bytes: int) -> bool:
        """Whether so much more has to wait for another batch."""
        is_large = self.size_bytes + size_bytes > GATHERED_BYTES_MAX
        return is_large or len(self.replies) >= GATHERED_REPLIES_MAX

    def reply(self) -> Reply[ErrorCode]:
        made: Reply[ErrorCode] = Reply()
        self.replies.append(made)
        return made

    def tell(self, code: ErrorCode) -> None:
        for each in self.replies:
            each.complete(code)


class Gathering:
    """Writes to the partitions of a topic. Belongs to the loop's thread.

    Where no loop runs everything is written at once.
    """

    def __init__(self, topic: Topic, write: Write) -> None:
        """`write` puts records into a partition in one batch."""
        self._topic = topic
        self._write = write
        # Partitions that were written to in this turn, and what waits for its end.
        self._written: LoopTurn[int] = LoopTurn(self.flush_all)
        self._gathered: dict[int, _Gathered] = {}

    def append(self, number: int, records: Sequence[GroupRecord]) -> Reply[ErrorCode]:
        """Write records, now or soon; when they are safe, or why they were not written.

        A failure that is known at once is answered at once: then nothing was written.
        """
        size_bytes = _size_bytes(records)
        if size_bytes > GATHERED_BYTES_MAX or self._written.is_first(number):
            self.flush(number)
            return self._write(number, records)
        if not self._topic.takes(number):
            return Reply.of(ErrorCode.NOT_COORDINATOR)
        found = self._gathered.get(number)
        if found is not None and found.is_full_for(size_bytes):
            self.flush(number)
            found = self._gathered.get(number)  # who was told may have written on
        if found is None:
            found = self._gathered[number] = _Gathered()
        found.records += records
        found.size_bytes += size_bytes
        return found.reply()

    def pending(self, number: int) -> Reply[ErrorCode] | None:
        """When all that waits for a partition is safe; None where nothing waits."""
        found = self._gathered.get(number)
        return None if found is None else found.reply()

    def flush_all(self) -> None:
        """Write all that waits."""
        for number in tuple(self._gathered):
            self.flush(number)

    def flush(self, number: int) -> None:
        """Write what waits for a partition, before something that is not gathered."""
        found = self._gathered.pop(number, None)
        if found is None:
            return
        written = self._write(number, found.records)
        if written.is_done and written.value is not ErrorCode.NONE:
            # It is taken to be so already: only the log can tell what is.
            self._topic.lose(number)
            found.tell(ErrorCode.NOT_COORDINATOR)
            return
        written.then(found.tell)


def _size_bytes(records: Sequence[GroupRecord]) -> int:
    size_bytes = len(records) * _RECORD_BYTES
    for record in records:
        size_bytes += len(record.key) + len(record.value or b"")
    return size_bytes
