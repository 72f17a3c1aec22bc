"""Changing the tier: segments copied, verified, compacted, exchanged, deleted and collected.

Everything here needs the directory's lock: a `LogDir` that is open for writing.
"""

from tidelog.storage.tiering.collecting import Collected, collect
from tidelog.storage.tiering.compacting import compact_tier
from tidelog.storage.tiering.exchange import exchange
from tidelog.storage.tiering.moving import GRACE_MS, MoveOptions, MoveReport, tier_partition
from tidelog.storage.tiering.restoring import restore
from tidelog.storage.tiering.status import TierStatus, tier_status
from tidelog.storage.tiering.verifying import Problem, verify

__all__ = [
    "GRACE_MS",
    "Collected",
    "MoveOptions",
    "MoveReport",
    "Problem",
    "TierStatus",
    "collect",
    "compact_tier",
    "exchange",
    "restore",
    "tier_partition",
    "tier_status",
    "verify",
]
