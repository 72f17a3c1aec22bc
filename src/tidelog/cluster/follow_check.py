"""Before records are fetched: where a standby's logs and their leader's part, and what has to go.

First by leader epochs, for every epoch of which the standby has records; then by the last batch,
byte against byte, since two leaders can have used the same epoch.

Records of the standby go by a proof alone: the leader says twice where its epochs end, and shows
a sound batch of other records at those offsets, or behind them. An answer that is missing, damaged
or contradicts another one changes nothing; nor does a leader that has no records there, as one that
was put back from a backup. The partition stands still with the reason, until the next look.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from tidelog.cluster import codes
from tidelog.cluster.follow_copy import Copy
from tidelog.cluster.follow_epochs import EpochEnd, ends_problem, is_other_batch
from tidelog.cluster.follow_leader import FetchLimits, Leader, Position
from tidelog.cluster.follow_records import first_two
from tidelog.error_codes import ErrorCode
from tidelog.errors import ClusterFailure, CorruptBatch, TidelogError
from tidelog.protocol.messages.common import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tidelog.protocol.messages.fetch import PartitionData
from tidelog.record.views import Batch
from tidelog.types import TopicPartition

# One batch of each partition is wanted; its size is known only as it was copied.
_PROBE: Final = FetchLimits(max_wait_ms=0, partition_max_bytes=1 << 20)
# Errors of a partition that another look at the cluster explains: moved, fenced, unknown, not yet
# available.
LOOK_AGAIN: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)

Ends: TypeAlias = dict[int, EpochEnd]


def check_copies(leader: Leader, node_id: int, copies: Sequence[Copy]) -> None:
    """Reconcile these copies with their leader; `is_checked` and `problem` say how it went.

    Raises:
        ClusterFailure: The broker can't be reached.
    """
    ends = _ends(leader, node_id, copies)
    # The starts after the ends: an end at or below the start then says nothing.
    starts = _offsets(leader, node_id, _going(copies), EARLIEST_TIMESTAMP)
    tops = _offsets(leader, node_id, _going(copies), LATEST_TIMESTAMP)
    parted: dict[TopicPartition, int] = {}
    for copy in _going(copies):
        name = copy.name
        with _Problems(copy):
            _ensure_possible(copy, starts[name], tops[name])
            offset = copy.parting(ends[name], starts[name], tops[name])
            if offset is None:
                copy.agree(None)
            else:
                parted[name] = offset
    doubtful = [copy for copy in _going(copies) if copy.name in parted]
    if doubtful:
        _prove(leader, node_id, doubtful, parted, tops, ends)
    _compare_last_batches(leader, node_id, [copy for copy in copies if copy.is_checked])


class _Problems:
    """Makes errors of one partition its problem."""

    def __init__(self, copy: Copy) -> None:
        self._copy = copy

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, TidelogError):
            return False
        self._copy.is_checked = False
        self._copy.problem = error
        return True


def _going(copies: Sequence[Copy]) -> list[Copy]:
    """Those that nothing has stopped, and whose leader did not ask for another look."""
    return [copy for copy in copies if copy.problem is None and not copy.is_refused]


def _refused(copy: Copy, failure: ClusterFailure | None, what: str) -> None:
    """The leader has not answered for a partition: it is told, at once or when it goes on so."""
    if failure is None:
        failure = ClusterFailure(str(copy.name), what, "the leader's answer leaves it out")
    with _Problems(copy):
        copy.refuse(failure, is_passing=failure.error_code in LOOK_AGAIN)


def _offsets(
    leader: Leader, node_id: int, copies: Sequence[Copy], timestamp: int
) -> dict[TopicPartition, int]:
    if not copies:
        return {}
    answers = leader.log_offsets(node_id, [copy.name for copy in copies], timestamp)
    found = {}
    for copy in copies:
        answer = answers.get(copy.name)
        if isinstance(answer, int):
            found[copy.name] = answer
        else:
            _refused(copy, answer, "ask where its log begins and ends")
    return found


def _ends(leader: Leader, node_id: int, copies: Sequence[Copy]) -> dict[TopicPartition, Ends]:
    """The leader's answers for all epochs of each copy that nothing stops."""
    ends: dict[TopicPartition, Ends] = {copy.name: {} for copy in copies}
    waiting: dict[TopicPartition, list[int]] = {}
    for copy in copies:
        copy.is_refused = False
        with _Problems(copy):
            waiting[copy.name] = [mine.epoch for mine in copy.own_epochs()]
    by_name = {copy.name: copy for copy in copies}
    while asked := {name: epochs.pop() for name, epochs in waiting.items() if epochs}:
        answers = leader.ends_of_epochs(node_id, asked)
        for name, epoch in asked.items():
            found = answers.get(name)
            if found is None or isinstance(found, ClusterFailure):
                waiting.pop(name, None)
                _refused(by_name[name], found, "ask for ends of epochs")
            else:
                ends[name][epoch] = found
    return ends


def _ensure_possible(copy: Copy, start: int, top: int) -> None:
    if not 0 <= start <= top:
        reason = f"the leader says that its log starts at {start} and ends at {top}"
        raise ClusterFailure(str(copy.name), "compare the logs", reason)


def _prove(
    leader: Leader,
    node_id: int,
    copies: Sequence[Copy],
    parted: Mapping[TopicPartition, int],
    tops: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, Ends],
) -> None:
    """Drop what parts a copy from its leader, where the leader's records prove it."""
    again = _ends(leader, node_id, copies)
    by_name = {copy.name: copy for copy in copies}
    positions = []
    for copy in _going(copies):
        with _Problems(copy):
            _ensure_same(copy, ends[copy.name], again[copy.name])
            at, top = max(parted[copy.name], copy.leader_start), tops[copy.name]
            if top > at:
                positions.append(copy.position_at(at))
            elif copy.batch_reaching(at) is None:
                copy.agree(parted[copy.name])  # below the leader's start: its epochs alone can tell
            elif top > copy.leader_start:
                positions.append(copy.position_at(top - 1))
            else:
                raise _shorter(copy, top)
    for name, data in _fetch(leader, node_id, positions):
        copy = by_name[name]
        with _Problems(copy):
            at = max(parted[name], copy.leader_start)
            if data.error_code:
                code = data.error_code
                failure = ClusterFailure(leader.place, "fetch", codes.named(code), error_code=code)
                _refused(copy, failure, "fetch")
            elif tops[name] <= at:
                copy.agree(_other_before(copy, data, tops[name]))
            else:
                _ensure_other(copy, data, at)
                copy.agree(parted[name])


def _fetch(
    leader: Leader, node_id: int, positions: Sequence[Position]
) -> Iterator[tuple[TopicPartition, PartitionData]]:
    if positions:
        leader.send_fetch(node_id, positions, _PROBE)
        yield from leader.receive_fetch(node_id, positions)


def _shorter(copy: Copy, top: int) -> ClusterFailure:
    return ClusterFailure(
        str(copy.name),
        "follow",
        f"the leader's log ends at offset {top}, and records up to {copy.log.log_end_offset - 1}"
        " are here: it has lost its end, or was put back from a backup. Nothing is dropped as long"
        " as it has no other records there; to go on with those that are here, promote it",
    )


def _other_before(copy: Copy, data: PartitionData, top: int) -> int:
    """Offset of the batch here that is another one than the leader's last; raises if it is not."""
    theirs, mine = _sound(copy, data), copy.batch_reaching(top - 1)
    if theirs is None or mine is None:
        raise _shorter(copy, top)
    mine.ensure_valid()
    if not is_other_batch(mine, theirs):
        raise _shorter(copy, top)
    return max(mine.base_offset, copy.leader_start)


def _ensure_same(copy: Copy, first: Ends, second: Ends) -> None:
    problem = ends_problem(first)
    if first != second:
        problem = f"{first} at first, {second} then"
    if problem is not None:
        reason = f"the leader contradicts itself on where its epochs end: {problem}"
        raise ClusterFailure(str(copy.name), "compare the logs", reason)


def _ensure_other(copy: Copy, data: PartitionData, at: int) -> None:
    """Raise unless the leader shows records at or behind an offset that are not those here."""
    theirs = _sound(copy, data)
    if theirs is None:
        reason = f"the leader says that the logs part at {at}, and shows no record there"
        raise ClusterFailure(str(copy.name), "compare the logs", reason)
    mine = copy.batch_reaching(max(theirs.base_offset, at))
    if mine is None:
        return  # it has only later ones
    mine.ensure_valid()
    if not is_other_batch(mine, theirs) and mine.leader_epoch == theirs.leader_epoch:
        reason = f"the leader says that the logs part at {at}, and has the same records there"
        raise ClusterFailure(str(copy.name), "compare the logs", reason)


def _sound(copy: Copy, data: PartitionData) -> Batch | None:
    """The first batch of an answer, None where there is none; raises CorruptBatch for damage."""
    theirs, _ = first_two(memoryview(data.batches))
    if theirs is None and len(data.batches):
        raise CorruptBatch(f"{copy.name}: the leader sent {len(data.batches)} bytes and no batch")
    if theirs is not None:
        theirs.ensure_valid()
    return theirs


def _compare_last_batches(leader: Leader, node_id: int, copies: Sequence[Copy]) -> None:
    probes = {}
    for copy in copies:
        with _Problems(copy):
            probe = copy.probe()
            if probe is not None:
                probes[copy.name] = probe
    by_name = {copy.name: copy for copy in copies}
    for name, data in _fetch(leader, node_id, list(probes.values())):
        copy = by_name[name]
        if data.error_code:
            continue  # the fetch that follows is told
        with _Problems(copy):
            mine = copy.log.last_batch_below(copy.log.log_end_offset)
            theirs = _sound(copy, data)
            if mine is not None and theirs is not None and is_other_batch(mine, theirs):
                copy.drop_newest_epoch(copy.leader_start)
