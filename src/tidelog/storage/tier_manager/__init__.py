"""Functions on tiers: copy, verify, compact, replace, delete and collect segments.

A change of a tier needs the directory's lock: a `LogDir` open for writing. `verify` and
`tier_status` change nothing, and need no lock.
"""

from tidelog.storage.tier_manager.mover import (
    GRACE_MS,
    MoveOptions,
    MoveReport,
    TierStatus,
    tier_partition,
    tier_status,
)
from tidelog.storage.tier_manager.orphans import CollectedOrphans, collect, restore
from tidelog.storage.tier_manager.tier_compaction import compact_tier
from tidelog.storage.tier_manager.tier_store import Problem, verify
