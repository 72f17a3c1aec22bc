"""How batches for many logs are appended together: each step with all of them.

A plain append of `WritingLog` in four steps. Batches stream through the processor's caches where
they are judged and written, and throw out what the interpreter needs; taken by steps, the others
find it there. And what holds for all of them is found out once.
"""

from collections.abc import Iterable
from typing import Final

from tidelog.errors import ClockJump, StorageFailure, TidelogError
from tidelog.record.batch import RecordBatch
from tidelog.storage.active import ActiveSegment
from tidelog.storage.append_clock import Moment
from tidelog.storage.appends import AppendOrigin, AppendResult
from tidelog.storage.writing import WritingLog, one
from tidelog.types import NO_PRODUCER_ID, NO_TIMESTAMP, UNKNOWN_MS, Buffer


class PlainAppend:
    """One batch on its way into a log, found plain, with its offset in it.

    Attributes:
        log: Which.
        batch: A view of it.
        data: Its bytes, and nothing else.
        append_ms: Append time, -1 where the append clock is off.
        now_ms: Wall time when it was judged.
        active: The segment that it goes into, once it has begun.
        said: What came of it; None while it is on its way.
    """

    __slots__ = ("active", "append_ms", "batch", "data", "log", "now_ms", "said")

    active: ActiveSegment

    def __init__(
        self, log: "SteppingLog", batch: RecordBatch, data: Buffer, append_ms: int, now_ms: int
    ) -> None:
        self.log = log
        self.batch = batch
        self.data = data
        self.append_ms = append_ms
        self.now_ms = now_ms
        self.said: AppendResult | TidelogError | None = None


class SteppingLog(WritingLog):
    """A partition that takes a plain append by steps."""

    def judge_plain(self, data: Buffer, moment: Moment) -> PlainAppend | None:
        """The first step; what is said holds until the log is changed.

        Args:
            data: A buffer that a client has sent and that may be changed.
            moment: Of all appends that are made together.

        Returns:
            None where something about it, or about the log, is out of the ordinary: nothing was
            changed then, and `append_batches` appends it or says what is wrong.
        """
        if self._failure is not None or self._is_closed:
            return None
        if self._has_append_times:
            try:
                append_ms, now_ms = self._append_clock.next_and_now_ms(moment)
            except ClockJump:
                return None
        else:
            append_ms, now_ms = UNKNOWN_MS, self.context.env.clock.now_ms()
        end = self._segments[-1].end_offset
        batch = self._plain.accept(data, end, self.leader_epoch, now_ms)
        return None if batch is None else PlainAppend(self, batch, data, append_ms, now_ms)

    def begin_plain(self, append: PlainAppend) -> AppendResult | None:
        """The second step: all that comes before the log's bytes.

        Returns:
            What is said of a batch that is there already: that was all then. Else None.

        Raises:
            As `append_batches`, of producers and disks; the next steps of disks.
        """
        batch = append.batch
        if batch.producer_id > NO_PRODUCER_ID:
            duplicate = self._producers.check(batch, origin=AppendOrigin.CLIENT)
            if duplicate is not None:
                return self._duplicate_result(duplicate)
        active = begun = self.active
        self._is_changed = True
        try:
            if not self._epoch_is_noted:
                self._note_own_epoch(batch.base_offset)
            if not begun.has_room(batch, self._segment_size_limit, self._roll_ms - self._jitter_ms):
                self._maybe_roll(begun, one(batch, append.data), append.now_ms)
                active = self.active
            append.active = active
            active.begin_one(batch, append.append_ms)
        except (OSError, StorageFailure) as error:
            self._give_out(error, begun.log_path, "append")
        return None

    def write_plain(self, append: PlainAppend) -> None:
        """The third step: the log's bytes."""
        try:
            append.active.write_one(append.data)
        except (OSError, StorageFailure) as error:
            self._give_out(error, append.active.log_path, "append")

    def end_plain(self, append: PlainAppend) -> AppendResult:
        """The last step: all that comes after them."""
        batch, active = append.batch, append.active
        base_offset = batch.base_offset
        last_offset = base_offset + batch.last_offset_delta
        try:
            active.end_one(batch)
            if batch.producer_id > NO_PRODUCER_ID:
                self._update_producers((batch,), append.now_ms)
            self._acknowledge(active, last_offset - base_offset + 1, append.now_ms)
        except (OSError, StorageFailure) as error:
            self._give_out(error, active.log_path, "append")
        batch.let_go()  # the segment keeps it, a request's buffer is to serve again
        return AppendResult(
            base_offset, last_offset, append.append_ms, NO_TIMESTAMP, self._log_start_offset
        )


_STEPS: Final = (SteppingLog.begin_plain, SteppingLog.write_plain, SteppingLog.end_plain)


def append_together(asked: Iterable[tuple[SteppingLog, Buffer]]) -> list[PlainAppend | None]:
    """Append a batch to each of some logs, no two of them the same.

    Args:
        asked: Whose, and what, as of `judge_plain`.

    Returns:
        Of each what was said, an answer or a typed error; None where `judge_plain` has found that
        another way is to be taken. What befalls one of them is nothing to the others.
    """
    moment = Moment()
    appends = [log.judge_plain(data, moment) for log, data in asked]
    for step in _STEPS:
        for append in appends:
            if append is not None and append.said is None:
                try:
                    append.said = step(append.log, append)
                except TidelogError as error:
                    # Without its frames, which know the append: a circle that keeps its buffer.
                    append.said = error.with_traceback(None)
    return appends
