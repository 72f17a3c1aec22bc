"""Before records are fetched: where a standby's logs and their leader's part, and what has to go.

First by leader epochs, for every epoch of which the standby has records; then by the last batch,
byte against byte, since two leaders can have used the same epoch. Whatever the leader does not
answer now leaves a copy unchecked, to be asked about again.
"""

from collections.abc import Sequence
from typing import Final

from tidelog.cluster.follow_copy import Copy
from tidelog.cluster.follow_epochs import EpochEnd, is_other_batch
from tidelog.cluster.follow_leader import FetchLimits, Leader
from tidelog.errors import ClusterFailure, CorruptData, TidelogError
from tidelog.protocol.messages.common import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP
from tidelog.protocol.messages.fetch import PartitionData
from tidelog.record.views import walk
from tidelog.types import TopicPartition

# One batch of each partition is wanted; its size is known only as it was copied.
_PROBE: Final = FetchLimits(max_wait_ms=0, partition_max_bytes=1 << 20)


def check_copies(leader: Leader, node_id: int, copies: Sequence[Copy]) -> None:
    """Reconcile these copies with their leader; `is_checked` and `problem` say how it went.

    Raises:
        ClusterFailure: The broker can't be reached.
    """
    ends = _ends(leader, node_id, copies)
    # The starts after the ends: an end at or below the start then says nothing.
    starts = leader.log_offsets(node_id, list(ends), EARLIEST_TIMESTAMP)
    lost = [copy.name for copy in copies if copy.is_out_of_range and copy.name in ends]
    tops = leader.log_offsets(node_id, lost, LATEST_TIMESTAMP) if lost else {}
    for copy in copies:
        start, top = starts.get(copy.name), tops.get(copy.name)
        if copy.name in ends and isinstance(start, int) and not isinstance(top, ClusterFailure):
            _reconcile(copy, ends[copy.name], start, top)
    _compare_last_batches(leader, node_id, [copy for copy in copies if copy.is_checked])


def _ends(
    leader: Leader, node_id: int, copies: Sequence[Copy]
) -> dict[TopicPartition, dict[int, EpochEnd]]:
    """The leader's answers for all epochs of each copy; without those that it refused."""
    ends: dict[TopicPartition, dict[int, EpochEnd]] = {copy.name: {} for copy in copies}
    waiting = {copy.name: _epochs_of(copy) for copy in copies}
    while asked := {name: epochs.pop() for name, epochs in waiting.items() if epochs}:
        answers = leader.ends_of_epochs(node_id, asked)
        for name, epoch in asked.items():
            found = answers.get(name)
            if found is None or isinstance(found, ClusterFailure):
                waiting.pop(name, None)
                ends.pop(name, None)
            else:
                ends[name][epoch] = found
    return ends


def _epochs_of(copy: Copy) -> list[int]:
    try:
        return [mine.epoch for mine in copy.own_epochs()]
    except TidelogError as error:
        copy.problem = error
        return []


def _reconcile(copy: Copy, ends: dict[int, EpochEnd], start: int, top: int | None) -> None:
    if copy.problem is None:
        try:
            copy.reconcile(ends, start, top)
        except TidelogError as error:
            copy.problem = error


def _compare_last_batches(leader: Leader, node_id: int, copies: Sequence[Copy]) -> None:
    probes = {copy.name: probe for copy in copies if (probe := copy.probe()) is not None}
    if not probes:
        return
    by_name = {copy.name: copy for copy in copies}
    positions = list(probes.values())
    leader.send_fetch(node_id, positions, _PROBE)
    for name, data in leader.receive_fetch(node_id, positions):
        copy = by_name[name]
        try:
            if not data.error_code and _is_other(copy, data):
                copy.drop_newest_epoch(copy.leader_start)
        except CorruptData:
            continue  # the fetch that follows is told
        except TidelogError as error:
            copy.problem = error


def _is_other(copy: Copy, data: PartitionData) -> bool:
    mine = copy.log.last_batch_below(copy.log.log_end_offset)
    theirs = next(walk(data.batches), None)
    return mine is not None and theirs is not None and is_other_batch(mine, theirs)
