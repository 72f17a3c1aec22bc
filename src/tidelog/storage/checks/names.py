"""Checks of the names in a partition's directory: what is no file of the log, or has lost its own.

What a deletion, a compaction or a commit has left half done is ended by opening for writing.
"""

from collections.abc import Iterator, Set
from typing import Final

from tidelog.storage import files
from tidelog.storage.checks.findings import Finding, Severity, derived, note
from tidelog.storage.checks.place import PartitionPlace
from tidelog.storage.checks.set_aside import ASIDE_SUFFIX
from tidelog.storage.commits import STAGED_SUFFIX
from tidelog.storage.compaction.generations.statistics import STATISTICS_FILE
from tidelog.storage.compaction_history import HISTORY_FILE
from tidelog.storage.log_end import COPIED_GAPS_FILE
from tidelog.storage.segment_notes import SEGMENT_NOTES_FILE
from tidelog.storage.tiers.record import TIER_FILE
from tidelog.storage.unsynced import UNSYNCED_FILE

_KNOWN: Final = frozenset(
    (
        files.LEADER_EPOCH_CHECKPOINT_FILE,
        files.PARTITION_METADATA_FILE,
        files.APPEND_TIME_CHECKPOINT_FILE,
        SEGMENT_NOTES_FILE,
        HISTORY_FILE,
        STATISTICS_FILE,
        TIER_FILE,
        COPIED_GAPS_FILE,
    )
)
_LEFT_OVER: Final = {
    files.DELETED_SUFFIX: "a deletion is under way, or was stopped",
    files.CLEANED_SUFFIX: "a compaction was stopped before its end",
    files.SWAP_SUFFIX: "a compaction was stopped while its files were renamed",
    files.TMP_SUFFIX: "a file was being replaced when its writer stopped",
    STAGED_SUFFIX: "a commit is under way, or was never finished",
}


def check_names(place: PartitionPlace, bases: Set[int]) -> Iterator[Finding]:
    """What is odd about the names in a partition's directory."""
    for entry in place.fs.list_dir(place.directory):
        path = place.path(entry.name)
        if entry.is_dir:
            yield note(path, "a directory that is no part of the log", "it is left alone")
        elif entry.name == UNSYNCED_FILE:
            damage = "the disk has failed: what was not synced before may not be on it"
            yield note(path, damage, "opening for writing writes it anew")
        elif entry.name not in _KNOWN:
            yield from _check_name(path, entry.name, bases)


def _check_name(path: str, name: str, bases: Set[int]) -> Iterator[Finding]:
    for suffix, meaning in _LEFT_OVER.items():
        if name.endswith(suffix):
            yield note(path, meaning, "opening for writing ends it")
            return
    if name.endswith(ASIDE_SUFFIX):
        yield note(path, "damage that a repair has set aside", "remove it once nobody needs it")
        return
    parsed = files.parse_file_name(name)
    if parsed is None or parsed[1] not in (*files.SEGMENT_SUFFIXES, files.SNAPSHOT_SUFFIX):
        yield note(path, "no file of the log by its name", "it is left alone")
    elif parsed[1] != files.SNAPSHOT_SUFFIX and parsed[0] not in bases:
        yield _orphan(path, parsed[1])


def _orphan(path: str, suffix: str) -> Finding:
    damage = f"there is no {files.LOG_SUFFIX} file of that name beside it"
    if suffix == files.APPEND_TIME_SUFFIX:
        return Finding(
            path=path,
            severity=Severity.WARNING,
            damage=damage,
            remedy="restore the log file; if it was meant to go, opening for writing drops this",
        )
    return derived(path, damage, severity=Severity.WARNING, remedy="--repair removes it")
