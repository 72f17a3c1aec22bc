"""Status of tiers in one sentence, for the first line of a command and the head of a page."""

from collections.abc import Sequence

from tidelog.amounts import bytes_text, plural, verb
from tidelog.storage.tier_manager.mover import TierStatus


def tier_verdict(statuses: Sequence[TierStatus], taking_part: int) -> str:
    """Return what lies where, and what waits to be copied.

    Args:
        statuses: Partitions that take part in tiering, or have segments in a tier.
        taking_part: Number of all partitions that were looked at.
    """
    if not statuses:
        return f"no tier: none of {plural(taking_part, 'partition')} keeps segments in a store"
    local = sum(one.local_bytes for one in statuses)
    tiered = sum(one.tier_bytes for one in statuses)
    waiting = sum(one.waiting_segments for one in statuses)
    garbage = sum(one.garbage_segments for one in statuses)
    sizes = f"{bytes_text(tiered)} in the store, {bytes_text(local)} local"
    partitions = plural(len(statuses), "partition")
    parts = [f"{partitions} with a tier: {sizes}"]
    if waiting:
        size = bytes_text(sum(one.waiting_bytes for one in statuses))
        wait = verb(waiting, "waits", "wait")
        parts.append(f"{plural(waiting, 'segment')} of {size} {wait} to be copied")
    else:
        parts.append("nothing waits to be copied")
    if garbage:
        wait = verb(garbage, "waits", "wait")
        parts.append(f"{plural(garbage, 'old segment')} {wait} to be removed")
    return "; ".join(parts)
