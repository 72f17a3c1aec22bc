"""The order of an append's writes, for one log or many together.

How a log takes an append that was judged: what is written in which order, and what follows.

`Log` says what may be appended. All of this is of the thread that appends.

Source: Kafka 4.x UnifiedLog.append, LocalLog.

How batches for many logs are appended together: each step with all of them.

A plain append of `WritingLog` in four steps. Batches stream through the processor's caches where
they are judged and written, and throw out what the interpreter needs; taken by steps, the others
find it there. And what holds for all of them is found out once.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from tidelog.config import TopicConfig
from tidelog.errors import ClockJump, StorageFailure, TidelogError
from tidelog.record.batch import RecordBatch
from tidelog.record.batch_walk import Batch
from tidelog.record.header import MAGIC_2
from tidelog.storage.clocks.append_clock import Moment
from tidelog.storage.log.append import AppendOrigin, AppendResult, ValidatedAppend
from tidelog.storage.log.following import FollowingLog
from tidelog.storage.log.producers import Duplicate
from tidelog.storage.segment import roll
from tidelog.storage.segment.active_segment import ActiveSegment
from tidelog.types import (
    INT32_MAX,
    INT64_MAX,
    NO_OFFSET,
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    UNKNOWN_MS,
    Buffer,
)


class WritingLog(FollowingLog):
    """A partition that writes what its rules have let through."""

    def configure(self, config: TopicConfig) -> None:
        """Take new settings of the topic; they hold from the next append on."""
        super().configure(config)
        # What each append looks at.
        self._segment_size_limit, self._roll_ms = config.segment_size_limit, config.roll_ms
        self._flush_messages, self._flush_ms = config.flush_messages, config.flush_ms
        self._may_flush = min(config.flush_messages, config.flush_ms) < INT64_MAX
        self._has_append_times = config.tidelog_append_time_enable

    def append_plain(self, data: Buffer) -> AppendResult | None:
        """`append_batches` of a buffer that a client has sent and that may be changed.

        Returns:
            None where something about it, or about the log, is out of the ordinary: nothing was
            changed then, and `append_batches` appends it or says what is wrong.

        Raises:
            As `append_batches`, of producers and disks.
        """
        if self._failure is not None or self._is_closed:
            return None
        try:
            append_ms, now_ms = self._append_times_ms()
        except ClockJump:
            return None
        end = self._segments[-1].end_offset
        batch = self._plain.accept(data, end, self.leader_epoch, now_ms)
        if batch is None:
            return None
        return self._append_one(batch, data, append_ms, now_ms, AppendOrigin.CLIENT, 0)

    def _append_times_ms(self) -> tuple[int, int]:
        """When an append is, by the append clock (-1 where it is off) and by the wall's."""
        if self._has_append_times:
            return self._append_clock.next_and_now_ms()
        return UNKNOWN_MS, self.context.env.clock.now_ms()

    def _append_one(
        self,
        batch: RecordBatch,
        data: Buffer,
        append_ms: int,
        now_ms: int,
        origin: AppendOrigin,
        transaction_version: int,
    ) -> AppendResult:
        """Append a batch that was found plain: `_write` and the rest, in as few steps as it goes.

        It is written as its topic's rules want it, of CreateTime, and `data` holds nothing else.
        """
        has_producer = batch.producer_id > NO_PRODUCER_ID
        if has_producer:
            duplicate = self._producers.check(
                batch, origin=origin, transaction_version=transaction_version
            )
            if duplicate is not None:
                return self._duplicate_result(duplicate)
        active = begun = self.active
        base_offset = batch.base_offset
        last_offset = base_offset + batch.last_offset_delta
        self._is_changed = True
        try:
            if not self._epoch_is_noted:
                self._note_own_epoch(base_offset)
            if not begun.has_room(batch, self._segment_size_limit, self._roll_ms - self._jitter_ms):
                self._maybe_roll(begun, one(batch, data), now_ms)
                active = self.active
            active.append_one(batch, data, append_ms)
            if has_producer:
                self._update_producers((batch,), now_ms)
            self._acknowledge(active, last_offset - base_offset + 1, now_ms)
        except (OSError, StorageFailure) as error:
            self._give_out(error, begun.log_path, "append")
        batch.let_go()  # the segment keeps it, a request's buffer is to serve again
        return AppendResult(
            base_offset, last_offset, append_ms, NO_TIMESTAMP, self._log_start_offset
        )

    def _write(
        self, valid: ValidatedAppend, append_ms: int, origin: AppendOrigin, now_ms: int
    ) -> None:
        """As `_guarded_now` would do it, without the calls: this is done for each append."""
        begun = self.active
        self._ensure_writable()
        self._is_changed = True
        try:
            if origin is AppendOrigin.REPLICATION or not self._epoch_is_noted:
                self._note_epochs(valid, origin)
            self._maybe_roll(begun, valid, now_ms)
            active = self.active
            active.append(valid.batches, (valid.data,), append_ms)
            if may_have_producers(valid):
                self._update_producers(valid.batches, now_ms)
            self._acknowledge(active, valid.last_offset - valid.first_offset + 1, now_ms)
        except (OSError, StorageFailure) as error:
            self._give_out(error, begun.log_path, "append")
        last = valid.batches[-1]
        if isinstance(last, RecordBatch):
            last.let_go()  # the segment keeps it, a request's buffer is to serve again

    def _note_epochs(self, valid: ValidatedAppend, origin: AppendOrigin) -> None:
        """The epoch file says who wrote an offset before the offset is written."""
        if origin is not AppendOrigin.REPLICATION:
            if not self._epoch_is_noted:
                self._note_own_epoch(valid.first_offset)
        elif self._note_leader_epochs(valid.batches):
            self._write_epochs()

    def _note_own_epoch(self, first_offset: int) -> None:
        changed = self._epochs.assign(self.leader_epoch, first_offset)
        self._epoch_is_noted = True
        if changed:
            self._write_epochs()

    def _note_leader_epochs(self, batches: Sequence[Batch]) -> bool:
        changed = False
        for batch in batches:
            if batch.leader_epoch >= 0:
                changed |= self._epochs.assign(batch.leader_epoch, batch.base_offset)
            elif self._epochs.latest is not None:
                self._epochs.clear()
                changed = True
        return changed

    def _update_producers(self, batches: Sequence[Batch], now_ms: int) -> None:
        for batch in batches:
            if not batch.has_producer_id:
                continue
            completed = self._producers.update(batch, now_ms)
            if completed is not None and completed.is_aborted:
                self.active.append_aborted(self._producers.aborted_entry(completed))

    def _acknowledge(self, active: ActiveSegment, offsets: int, now: int) -> None:
        """Show the append, after a flush where `flush.messages` or `flush.ms` want one.

        The flush may be left to the caller, see `LogOptions.leaves_flushes`.

        Args:
            active: Where it was written to.
            offsets: How many offsets it takes.
            now: Wall time in ms.
        """
        self._unflushed_records += offsets
        if now > self._notes.arrived_ms:
            self._notes.arrived_ms = now
        if not self._may_flush:
            active.acknowledge()
            return
        is_due = (
            self._unflushed_records >= self._flush_messages
            or now - self._last_flush_ms >= self._flush_ms
        )
        is_left = is_due and self._options.leaves_flushes
        if is_due and not is_left:
            active.sync_records()
        active.acknowledge()
        if is_left:
            self.is_flush_due = True
        elif is_due:
            self._note_flush(now, self.log_end_offset)

    def _maybe_roll(self, active: ActiveSegment, valid: ValidatedAppend, now_ms: int) -> None:
        reason = roll.should_roll(
            roll.RollFacts(
                size_bytes=active.size_bytes,
                append_bytes=len(valid.data),
                base_offset=active.base_offset,
                append_last_offset=valid.last_offset,
                first_timestamp=active.first_timestamp,
                append_max_timestamp=valid.max_timestamp,
                created_ms=active.created_ms,
                now_ms=now_ms,
                offset_index_full=active.offset_index.is_full,
                time_index_full=active.time_index.is_full,
                jitter_ms=self._jitter_ms,
            ),
            self._roll_config,
        )
        if reason is not None:
            self._roll(max(_first_sure_offset(valid), self.log_end_offset), reason)

    def _duplicate_result(self, found: Duplicate) -> AppendResult:
        """The original offsets and the stored batch's timestamp, as Kafka answers."""
        known = self.append_time_of(found.first_offset)
        return AppendResult(
            found.first_offset,
            found.last_offset,
            UNKNOWN_MS if known is None else known,
            found.timestamp,
            self._log_start_offset,
            is_duplicate=True,
        )


def one(batch: RecordBatch, data: Buffer) -> ValidatedAppend:
    """An append of this one."""
    is_timed = batch.max_timestamp != NO_TIMESTAMP
    return ValidatedAppend(
        data,
        (batch,),
        batch.base_offset,
        batch.last_offset,
        batch.max_timestamp,
        batch.last_offset if is_timed else NO_OFFSET,
        batch.record_count,
    )


def may_have_producers(valid: ValidatedAppend) -> bool:
    """Whether some batch may name a producer; most appends are one batch that names none."""
    return len(valid.batches) > 1 or valid.batches[0].has_producer_id


def _first_sure_offset(valid: ValidatedAppend) -> int:
    """The first offset of an append, as far as it is known without decompression, as in Kafka."""
    if valid.batches[0].magic == MAGIC_2:
        return valid.first_offset
    return valid.batches[0].last_offset - INT32_MAX


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
