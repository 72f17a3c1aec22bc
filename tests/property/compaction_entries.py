"""Model of a compacted partition: all written records, and the records that must still exist."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Entry:
    """A written record; `taken_ms` is the time of the first cleaning that may have read it."""

    offset: int
    key: bytes
    value: bytes | None
    timestamp: int
    append_ms: int
    producer: int | None = None
    version: int = 0
    taken_ms: int | None = None
    # Whether the entry is a removed expired tombstone, or a record that such a tombstone covered.
    is_over: bool = False

    @property
    def rank(self) -> tuple[int, int]:
        """Rank among the records of a key; compaction keeps the record with the highest rank."""
        return self.version, self.offset


@dataclass(slots=True)
class Model:
    """All records ever written."""

    entries: dict[int, Entry] = field(default_factory=dict)
    # By producer: whether its transaction was committed; None while the transaction is open.
    fates: dict[int, bool | None] = field(default_factory=dict)
    log_end: int = 0
    cleaned_end: int = 0  # the offset up to which the last cleaning may have read the log

    @property
    def stable_end(self) -> int:
        """Offset below which no transaction is open."""
        opened = (e.offset for e in self.entries.values() if self._is_open(e))
        return min(opened, default=self.log_end)

    def _is_open(self, entry: Entry) -> bool:
        return entry.producer is not None and self.fates[entry.producer] is None

    def committed(self) -> list[Entry]:
        """Return the records that a read_committed reader would have seen without compaction."""
        end = self.stable_end
        return [
            e
            for e in self.entries.values()
            if e.offset < end and (e.producer is None or self.fates[e.producer])
        ]

    def table(self) -> dict[bytes | None, bytes]:
        """Return the value of each key's winner."""
        return replayed(e for e in self.committed() if not e.is_over)

    def latest(self) -> dict[bytes, Entry]:
        """Return the winner of each key, including expired tombstones."""
        return {e.key: e for e in sorted(self.committed(), key=lambda e: e.rank)}

    def end_tombstone(self, gone: Entry) -> None:
        """Mark the records that an expired tombstone has covered: they must never return.

        The tombstone no longer covers the key's other records, so a table may have them: later
        records, and records that no cleaning had read when the tombstone expired.
        """
        for entry in self.entries.values():
            is_covered = entry.key == gone.key and entry.rank <= gone.rank
            if is_covered and entry.offset < self.cleaned_end:
                entry.is_over = True


def replayed(entries: Iterable[Entry]) -> dict[bytes | None, bytes]:
    """Return the table that results from the records."""
    winners = {e.key: e.value for e in sorted(entries, key=lambda e: e.rank)}
    return {key: value for key, value in winners.items() if value is not None}
