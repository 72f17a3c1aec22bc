"""Checks of producer snapshots: their checksum, and what the log says of the same producers.

A snapshot may lack producers (they expire) and may know of some whose batches were deleted. What
both know must agree, where nothing was compacted away before the snapshot's offset.
"""

from collections.abc import Iterator

from tidelog.errors import CorruptData
from tidelog.storage.checks.findings import Finding, Severity, derived
from tidelog.storage.producer_entry import NO_COORDINATOR_EPOCH, to_snapshot
from tidelog.storage.producer_snapshot import SnapshotEntry, decode_snapshot
from tidelog.storage.producers import ProducerStates


def check_snapshot_bytes(path: str, data: bytes) -> Finding | None:
    """What is wrong with a file by itself."""
    try:
        decode_snapshot(data)
    except CorruptData as error:
        return derived(path, error.reason, position=error.at)
    return None


def compare_snapshot(
    path: str, data: bytes, states: ProducerStates, *, first_offset: int, is_exact: bool
) -> Iterator[Finding]:
    """Where a sound snapshot and the log disagree.

    Args:
        path: The file.
        data: Its bytes, which `check_snapshot_bytes` has passed.
        states: What the log says up to the snapshot's offset.
        first_offset: First offset that is still in the log.
        is_exact: Whether `states` are what the log's writer knew.
    """
    if not is_exact:
        return
    known = {entry.producer_id: to_snapshot(entry) for entry in states.producers.values()}
    saved = {entry.producer_id: entry for entry in decode_snapshot(data)}
    for producer_id, entry in saved.items():
        right = known.get(producer_id)
        if right is None and entry.last_offset >= first_offset:
            yield _differs(path, f"producer {producer_id}: the log has no batch of it")
        elif right is not None and (differences := _differences(entry, right)):
            yield _differs(path, f"producer {producer_id}: {'; '.join(differences)}")
    for producer_id in known.keys() - saved.keys():
        if known[producer_id].txn_first_offset >= 0:  # such a one never expires
            yield _differs(path, f"producer {producer_id} has an open transaction, and is missing")


def _differences(entry: SnapshotEntry, right: SnapshotEntry) -> list[str]:
    """Fields that differ; a coordinator's epoch is forgotten when a producer expires.

    A standby may know that a transaction has ended whose marker its leader had no more.
    """
    if entry.coordinator_epoch == NO_COORDINATOR_EPOCH:
        right = right._replace(coordinator_epoch=NO_COORDINATOR_EPOCH)
    if entry.txn_first_offset < 0:
        right = right._replace(txn_first_offset=entry.txn_first_offset)
    return [
        f"{name} is {said}, the log says {meant}"
        for name, said, meant in zip(entry._fields, entry, right, strict=True)
        if said != meant
    ]


def _differs(path: str, damage: str) -> Finding:
    return derived(path, damage, severity=Severity.WARNING)
