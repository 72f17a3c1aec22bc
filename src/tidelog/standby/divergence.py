"""Divergence of a standby's copies from their leader: comparison, proof and truncation.

To find a divergence, the ends of the leader epochs in the standby's log are compared with the ends
of the same epochs in the leader's log. Then the last local batch is compared with the leader's
batch at the same offset, since two leaders may have used the same epoch. If the epochs diverge,
records are truncated only after the leader has proved the divergence. The proof has two parts.
First, two requests to the leader return the same ends of epochs. Second, the leader has a valid
batch at or after the divergence's offset, and the copy has a different batch or no batch at the
same offset. If the leader's log ends before the divergence's offset, the leader's last batch is
compared instead. If all local records are below the leader's log start, the ends of epochs are the
only proof.

Nothing is truncated if a response is missing, damaged or contradictory, or if the leader has no
records at the diverging offsets, for example because the leader was restored from a backup.
Instead, the copy of the partition stops with a reason.

Source: Kafka 4.x AbstractFetcherThread, ReplicaFetcherThread; KIP-101, KIP-595.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from tidelog.error_codes import ErrorCode
from tidelog.errors import (
    ClusterFailure,
    CorruptBatch,
    TidelogError,
)
from tidelog.protocol.messages.fetch import PartitionData
from tidelog.record.batch_walk import Batch
from tidelog.remote import client
from tidelog.remote.leader import (
    EpochEnd,
    FetchLimits,
    Leader,
    Position,
    ends_problem,
    is_other_batch,
)
from tidelog.standby.fetched_batches import first_two
from tidelog.standby.partition_copy import Copy
from tidelog.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    TopicPartition,
)

# Limits of a fetch that requests one batch of each partition. The size of the batch is not known in
# advance.
_PROBE: Final = FetchLimits(max_wait_ms=0, partition_max_bytes=1 << 20)

# After an error of a partition with one of these codes, the cluster's metadata is read again,
# because the partition has moved, is unknown, or is not yet available.
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
    """Compare copies with their leader and truncate them if needed; set `is_checked` and `problem`.

    Raises:
        ClusterFailure: The broker can't be reached.
    """
    ends = _ends(leader, node_id, copies)
    # The ends of the leader's epochs are requested before the leader's log start offsets. So if an
    # epoch ends at or below the log start, the leader has deleted all records of this epoch.
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
    """Context manager that stores a TidelogError as the copy's `problem`."""

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
    """Return the copies that have not stopped, and that the leader has not refused."""
    return [copy for copy in copies if copy.problem is None and not copy.is_refused]


def _refused(copy: Copy, failure: ClusterFailure | None, what: str) -> None:
    """Remember that the leader refused a partition.

    The failure becomes the copy's `problem` if it is permanent, or if too many failures followed
    one another.
    """
    if failure is None:
        failure = ClusterFailure(str(copy.name), what, "the leader's response lacks the partition")
    with _Problems(copy):
        copy.refuse(failure, is_passing=failure.error_code in LOOK_AGAIN)


def _offsets(
    leader: Leader, node_id: int, copies: Sequence[Copy], timestamp: int
) -> dict[TopicPartition, int]:
    if not copies:
        return {}
    answers = leader.log_offsets(node_id, [copy.name for copy in copies], timestamp)
    offsets = {}
    for copy in copies:
        answer = answers.get(copy.name)
        if isinstance(answer, int):
            offsets[copy.name] = answer
        else:
            _refused(copy, answer, "request log start and end offsets")
    return offsets


def _ends(leader: Leader, node_id: int, copies: Sequence[Copy]) -> dict[TopicPartition, Ends]:
    """Fetch, for each copy, the offsets at which the copy's epochs end in the leader's log."""
    ends: dict[TopicPartition, Ends] = {copy.name: {} for copy in copies}
    waiting: dict[TopicPartition, list[int]] = {}
    for copy in copies:
        copy.is_refused = False
        with _Problems(copy):
            waiting[copy.name] = [own_epoch.epoch for own_epoch in copy.own_epochs()]
    by_name = {copy.name: copy for copy in copies}
    while requests := {name: epochs.pop() for name, epochs in waiting.items() if epochs}:
        answers = leader.ends_of_epochs(node_id, requests)
        for name, epoch in requests.items():
            epoch_end = answers.get(name)
            if epoch_end is None or isinstance(epoch_end, ClusterFailure):
                waiting.pop(name, None)
                _refused(by_name[name], epoch_end, "request ends of leader epochs")
            else:
                ends[name][epoch] = epoch_end
    return ends


def _ensure_possible(copy: Copy, start: int, top: int) -> None:
    if not 0 <= start <= top:
        reason = f"the leader reports that its log starts at {start} and ends at {top}"
        raise ClusterFailure(str(copy.name), "compare the logs", reason)


def _prove(
    leader: Leader,
    node_id: int,
    copies: Sequence[Copy],
    parted: Mapping[TopicPartition, int],
    tops: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, Ends],
) -> None:
    """Truncate copies if the leader's records prove that the copies diverge."""
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
                # the local records are below the leader's log start, so epochs are the only proof
                copy.agree(parted[copy.name])
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
                failure = ClusterFailure(
                    leader.address, "fetch", client.named(code), error_code=code
                )
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
        f"the leader's log ends before offset {top}, but the local log has records up to offset"
        f" {copy.log.log_end_offset - 1}: the leader has lost the end of its log, or was restored"
        " from a backup. The local records stay as long as the leader has no other records at these"
        " offsets; to continue with the local records, promote this standby",
    )


def _other_before(copy: Copy, data: PartitionData, top: int) -> int:
    """Return the offset of the local batch that differs from the leader's last batch.

    Raises ClusterFailure if the two batches are equal or either is missing, and CorruptBatch if
    either is damaged.
    """
    theirs, own_batch = _sound(copy, data), copy.batch_reaching(top - 1)
    if theirs is None or own_batch is None:
        raise _shorter(copy, top)
    own_batch.ensure_valid()
    if not is_other_batch(own_batch, theirs):
        raise _shorter(copy, top)
    return max(own_batch.base_offset, copy.leader_start)


def _ensure_same(copy: Copy, first: Ends, second: Ends) -> None:
    problem = ends_problem(first)
    if first != second:
        problem = f"{first} in the first response, {second} in the second"
    if problem is not None:
        reason = f"the leader contradicts itself on where its epochs end: {problem}"
        raise ClusterFailure(str(copy.name), "compare the logs", reason)


def _ensure_other(copy: Copy, data: PartitionData, at: int) -> None:
    """Raise ClusterFailure unless the leader's batch at an offset proves that the logs diverge."""
    theirs = _sound(copy, data)
    if theirs is None:
        reason = (
            f"according to the leader's epochs the logs diverge at offset {at}, but the leader"
            " returned no record at or after this offset"
        )
        raise ClusterFailure(str(copy.name), "compare the logs", reason)
    own_batch = copy.batch_reaching(max(theirs.base_offset, at))
    if own_batch is None:
        return  # the standby has no record at the leader's batch, so the logs diverge
    own_batch.ensure_valid()
    if not is_other_batch(own_batch, theirs) and own_batch.leader_epoch == theirs.leader_epoch:
        reason = (
            f"according to the leader's epochs the logs diverge at offset {at}, but the leader has"
            " the same records there as the standby"
        )
        raise ClusterFailure(str(copy.name), "compare the logs", reason)


def _sound(copy: Copy, data: PartitionData) -> Batch | None:
    """Return a response's first batch, None if there is none; raises CorruptBatch if damaged."""
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
            continue  # the next fetch reports the error
        with _Problems(copy):
            own_batch = copy.log.follower.last_batch_below(copy.log.log_end_offset)
            theirs = _sound(copy, data)
            if own_batch is not None and theirs is not None and is_other_batch(own_batch, theirs):
                copy.drop_newest_epoch(copy.leader_start)
