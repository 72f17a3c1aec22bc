"""Makes the brokers of this process lose offsets that groups commit in transactions."""

from tidelog.server.groups.committed_offsets import PendingOffsets

take = PendingOffsets.take


def forget(pending: PendingOffsets, number: int, producer_id: int, *, commit: bool) -> list[object]:
    """End the transaction, and lose its offsets."""
    take(pending, number, producer_id, commit=commit)
    return []


PendingOffsets.take = forget  # type: ignore[assignment, method-assign] # that is the fault
