"""Offsets of open transactions, compared with a model and with a restarted broker."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch, build_end_marker
from tidelog.server.groups.committed_offsets import CommittedOffset, OffsetChange, PendingOffsets
from tidelog.server.groups.records import offset_record
from tidelog.server.groups.replay import Replay
from tidelog.types import NewRecord

NUMBER = 3
Place = tuple[str, str, int]
PLACES: tuple[Place, ...] = (("g", "t", 0), ("g", "t", 1), ("h", "t", 0))


@dataclass
class Log:
    """Log with records of `__consumer_offsets`."""

    data: bytearray = field(default_factory=bytearray)
    end: int = 0

    def put(self, place: Place, offset: int | None, producer_id: int | None = None) -> None:
        value = None if offset is None else CommittedOffset(offset)
        made = offset_record(*place, value)
        record = NewRecord(key=made.key, value=made.value, timestamp=0)
        if producer_id is None:
            self.data += build_batch([record], base_offset=self.end)
        else:
            self.data += build_batch(
                [record],
                base_offset=self.end,
                producer_id=producer_id,
                producer_epoch=0,
                transactional=True,
            )
        self.end += 1

    def mark(self, producer_id: int, *, commit: bool) -> None:
        self.data += build_end_marker(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            timestamp=0,
            base_offset=self.end,
        )
        self.end += 1

    def replay(self) -> Replay:
        replay = Replay()
        for batch in walk(bytes(self.data)):
            replay.add(batch)
        return replay


@dataclass
class Model:
    """A plain model: keeps each committed offset with the position of its record in the log.

    When a transaction commits, its offset applies only if no other committed offset for the same
    partition has a later record.
    """

    offsets: dict[Place, tuple[int, int]] = field(default_factory=dict)
    pending: dict[int, dict[Place, tuple[int, int]]] = field(default_factory=dict)

    def plain(self, place: Place, offset: int | None, at: int) -> None:
        if offset is not None:
            self.offsets[place] = (offset, at)
            return
        self.offsets.pop(place, None)
        for found in self.pending.values():
            found.pop(place, None)

    def end(self, producer_id: int, *, commit: bool) -> None:
        for place, (offset, at) in self.pending.pop(producer_id, {}).items():
            known = self.offsets.get(place)
            if commit and (known is None or known[1] < at):
                self.offsets[place] = (offset, at)

    def is_pending(self, place: Place) -> bool:
        return any(place in found for found in self.pending.values())


class Ours:
    """The state of a running coordinator."""

    def __init__(self) -> None:
        self.offsets: dict[Place, int] = {}
        self.pending = PendingOffsets()

    def plain(self, place: Place, offset: int | None) -> None:
        if offset is None:
            self.offsets.pop(place, None)
            self.pending.forget(*place)
        else:
            self.offsets[place] = offset
            self.pending.supersede(*place)

    def end(self, producer_id: int, *, commit: bool) -> None:
        for each in self.pending.take(NUMBER, producer_id, commit=commit):
            self.offsets[each.group_id, each.topic, each.partition] = each.offset.offset


def after_restart(log: Log) -> Ours:
    replay, found = log.replay(), Ours()
    for group_id, loaded in replay.groups().items():
        for topic, partition, offset in loaded.offsets:
            found.offsets[group_id, topic, partition] = offset.offset
    for each in replay.pending():
        found.pending.put(NUMBER, each.producer_id, [each.offset], is_stale=each.is_stale)
    assert not replay.skipped
    return found


STEPS = st.one_of(
    st.tuples(st.just("plain"), st.sampled_from(PLACES), st.none() | st.integers(0, 99)),
    st.tuples(st.just("pending"), st.sampled_from(PLACES), st.integers(0, 99), st.integers(1, 3)),
    st.tuples(st.just("end"), st.integers(1, 3), st.booleans()),
    st.tuples(st.just("restart")),
)


@given(st.lists(STEPS, max_size=40))
def test_the_newest_committed_offset_counts(steps: list[tuple[object, ...]]) -> None:
    log, model, ours = Log(), Model(), Ours()
    for step in steps:
        match step:
            case ("plain", tuple() as place, offset):
                model.plain(place, offset, log.end)  # type: ignore[arg-type] # a step's parts
                ours.plain(place, offset)  # type: ignore[arg-type] # as above
                log.put(place, offset)  # type: ignore[arg-type] # as above
            case ("pending", tuple() as place, int() as offset, int() as producer):
                model.pending.setdefault(producer, {})[place] = (offset, log.end)
                group_id, topic, number = place
                found = OffsetChange(group_id, topic, number, CommittedOffset(offset))
                ours.pending.put(NUMBER, producer, [found])
                log.put(place, offset, producer)
            case ("end", int() as producer, bool() as commit):
                model.end(producer, commit=commit)
                ours.end(producer, commit=commit)
                log.mark(producer, commit=commit)
            case _:
                ours = after_restart(log)
        assert ours.offsets == {place: offset for place, (offset, _) in model.offsets.items()}
        for place in PLACES:
            assert ours.pending.is_pending(*place) == model.is_pending(place)


def test_a_group_with_only_pending_offsets_exists() -> None:
    pending = PendingOffsets()
    pending.put(NUMBER, 7, [OffsetChange("g", "t", 0, CommittedOffset(5))])
    assert pending.has_group("g")
    assert pending.partitions("g") == (("t", 0),)
    pending.unload(NUMBER + 1)
    assert pending.has_group("g")
    pending.unload(NUMBER)
    assert not pending.has_group("g")
    assert not any(pending._producers.values())


def test_a_producer_in_two_partitions_ends_in_each() -> None:
    pending = PendingOffsets()
    pending.put(0, 7, [OffsetChange("g", "t", 0, CommittedOffset(5))])
    pending.put(1, 7, [OffsetChange("h", "t", 0, CommittedOffset(6))])
    assert [each.group_id for each in pending.take(1, 7, commit=True)] == ["h"]
    assert pending.is_pending("g", "t", 0)
    assert pending.take(0, 7, commit=False) == []
    assert not pending.is_pending("g", "t", 0)
