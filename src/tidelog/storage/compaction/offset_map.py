"""The memory of a cleaning: the offset map, and one bit for each record that went through it.

Fixed: the map takes `log.cleaner.dedupe.buffer.size` bytes, the bits and what is noted of batches
at most `NOTES_BYTES_MAX`. Where either is full, mapping stops at that record, and the rest is
another pass's; at least one record always goes in.

A slot is 24 bytes as Kafka's: 16 of hash, 8 of number. Versions take 8 more. Where keys are kept,
half of the memory is theirs, and a slot has 8 bytes for the key's place.

Imports numpy and numba. Source: the keyed messages proposal; Kafka 4.x SkimpyOffsetMap.
"""

from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.errors import CleaningFailed
from tidelog.record.kernels import key_map, record_versions
from tidelog.record.kernels.checksums import NO_SHIFTS
from tidelog.record.kernels.key_hash import MD5, SIPHASH, make_hasher
from tidelog.record.kernels.key_window import WINDOW_SIZE
from tidelog.storage.compaction import rules as words
from tidelog.storage.compaction.rules import CompactionRules

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Bytes, Longs

# Bits of mapped records and notes on their batches, together.
NOTES_BYTES_MAX: Final = 64 << 20
_FIRST_BITS_BYTES: Final = 1 << 16
# A map that is known to get few keys has so many slots for each of them, and these beside.
_SLOTS_PER_KEY: Final = 2
_SLOTS_MIN: Final = 16
_WORD_BYTES: Final = 8
_HASH_BYTES: Final = 16
_STRATEGIES: Final = {
    words.OFFSET_STRATEGY: record_versions.BY_OFFSET,
    words.TIMESTAMP_STRATEGY: record_versions.BY_TIMESTAMP,
    words.HEADER_STRATEGY: record_versions.BY_HEADER,
}


class OffsetMap:
    """The map of one cleaning. One thread uses it.

    Attributes:
        keys: The arrays, as kernels take them.
        lost: One bit for each mapped record, set where it lost.
    """

    def __init__(
        self,
        rules: CompactionRules,
        seed: bytes,
        *,
        hash_mask: tuple[int, int] = (-1, -1),
        offset_count: int | None = None,
    ) -> None:
        """An empty map.

        Args:
            rules: Its size and strategy.
            seed: 16 secret bytes.
            hash_mask: What of both halves of a hash counts; tests make hashes collide by it.
            offset_count: How many offsets are to be mapped, None for unknown: a map with more
                slots than they can fill would only be slower.
        """
        arena_bytes = rules.dedupe_buffer_bytes // 2 if rules.verify_keys else 0
        slots = (rules.dedupe_buffer_bytes - arena_bytes) // slot_bytes(rules)
        if offset_count is not None:
            needed = offset_count * max(_SLOTS_PER_KEY, 1 / rules.load_factor)
            slots = min(slots, int(needed) + _SLOTS_MIN)
        algorithm = MD5 if rules.hash_name == words.MD5 else SIPHASH
        self.strategy: int = _STRATEGIES[rules.strategy]
        self.header: Bytes = np.frombuffer(rules.header.encode(), np.uint8)
        self.keys = key_map.KeyMap(
            hashes=np.zeros(2 * slots, np.int64),
            numbers=np.zeros(slots, np.int64),
            versions=np.zeros(slots if rules.has_versions else 0, np.int64),
            places=np.zeros(slots if rules.verify_keys else 0, np.int64),
            arena=np.zeros(arena_bytes, np.uint8),
            state=np.zeros(key_map.STATE_FIELDS, np.int64),
            window=np.zeros(WINDOW_SIZE, np.int64),
            key_limit=max(int(slots * rules.load_factor), 1),
            hasher=make_hasher(algorithm, seed, *hash_mask),
        )
        self.lost: Bytes = np.zeros(_FIRST_BITS_BYTES, np.uint8)
        self._notes_bytes = 0

    @property
    def key_count(self) -> int:
        """How many different keys are in it."""
        return int(self.keys.state[key_map.KEYS])

    @property
    def stop_offset(self) -> int:
        """Where it was full: the first record that is not in it."""
        return int(self.keys.state[key_map.STOP_OFFSET])

    @property
    def bad_slot(self) -> int:
        """Where a batch was found to be damaged: its row."""
        return int(self.keys.state[key_map.BAD_SLOT])

    def check_keys(self) -> None:
        """Do nothing while every key has found its room.

        A key that has none stays, and so do its older records: its tombstone must never go, and
        nobody would know that later on.

        Raises:
            CleaningFailed: A key is larger than all the room for keys.
        """
        if self.keys.state[key_map.TOO_LONG]:
            raise CleaningFailed(
                f"a key is too long for the {self.keys.arena.size} bytes in which"
                " tidelog.cleaner.verify.keys keeps all keys; raise"
                " log.cleaner.dedupe.buffer.size, half of which they are"
            )

    def release(self) -> None:
        """Let go of the memory; nothing can be asked of the map any more."""
        none: Longs = np.zeros(0, np.int64)
        self.keys = self.keys._replace(
            hashes=none, numbers=none, versions=none, places=none, arena=np.zeros(0, np.uint8)
        )
        self.lost = np.zeros(0, np.uint8)

    def make_room(self, record_count: int, notes_bytes: int) -> bool:
        """Have bits for so many records; False where that would be more than fits.

        Args:
            record_count: All records so far and those to come.
            notes_bytes: What the notes on the batches to come take.
        """
        needed = record_count // 8 + 1
        is_first = self._notes_bytes == 0
        self._notes_bytes += notes_bytes
        if not is_first and needed + self._notes_bytes > NOTES_BYTES_MAX:
            return False
        if needed > self.lost.size:
            grown: Bytes = np.zeros(max(needed, 2 * self.lost.size), np.uint8)
            grown[: self.lost.size] = self.lost
            self.lost = grown
        return True

    def key_rules(
        self, offset_start: int, offset_end: int, log_start: int, *, is_look_up: bool
    ) -> key_map.KeyRules:
        """What a kernel is to do with records of [offset_start, offset_end)."""
        return key_map.KeyRules(
            self.strategy,
            self.header,
            offset_start,
            offset_end,
            log_start,
            int(is_look_up),
            NO_SHIFTS,
        )


def slot_bytes(rules: CompactionRules) -> int:
    """Bytes of one slot."""
    extras = int(rules.has_versions) + int(rules.verify_keys)
    return _HASH_BYTES + _WORD_BYTES + _WORD_BYTES * extras
