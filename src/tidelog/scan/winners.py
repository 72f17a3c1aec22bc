"""Folds record batches to the winning record of each key, in bounded memory.

Whole keys are compared, so two keys with the same hash stay distinct. If the keys exceed the memory
limit, each pass handles only a share of the keys. Bits of a key's hash select its share. Further
passes read the records again, each for another share.

Only one thread may use a `LatestByKey`. Imports numpy, pyarrow and numba.
"""

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from tidelog.lazy_dataclass import dataclass
from tidelog.record.kernels.hashes import SIPHASH, hash_keys, make_hasher
from tidelog.record.kernels.last_records import (
    ENTRIES,
    KEY_BYTES,
    USED_FIELDS,
    KeyedRows,
    WinnerMap,
    fold_rows,
    keep_share,
    link_slots,
)

if TYPE_CHECKING:
    import random

    import numpy.typing as npt
    import pyarrow as pa

    from tidelog.record.kernels.memory import Bytes, Longs

    Column = pa.Array[pa.Scalar[pa.DataType]]

# Default limit in bytes for a map of keys. If the keys need more memory, each pass folds only a
# share of them.
MEMORY_BYTES: Final = 512 << 20
_ENTRIES_FIRST: Final = 4096
# Number of keys that a map may have even if it exceeds the memory limit. A pass reads all records,
# which would cost too much for fewer keys than this.
_ENTRIES_SURE: Final = 1024
_KEY_BYTES_FIRST: Final = 1 << 16
_SHARE_BITS_MAX: Final = 30


class Share(NamedTuple):
    """A share of all keys: the keys for which `hash & mask == bits`."""

    mask: int = 0
    bits: int = 0

    def halves(self) -> tuple["Share", "Share"]:
        """Divide the share into two halves, by one more bit of the hash."""
        bit = self.mask + 1
        return Share(self.mask | bit, self.bits), Share(self.mask | bit, self.bits | bit)


ALL_KEYS: Final = Share()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Candidate records, by columns.

    Attributes:
        keys: Keys of the records, binary; records without a key are ignored.
        versions: int64[n], by which the records of a key are ranked; offsets rank records with
            equal versions.
        offsets: int64[n].
        is_dead: bool[n], whether the record is a tombstone.
        sides: uint8[n]. Bit s is set if the record counts on side s (see `LatestByKey`).
    """

    keys: "Column"
    versions: "Longs"
    offsets: "Longs"
    is_dead: "npt.NDArray[np.bool_]"
    sides: "Bytes"


class LatestByKey:
    """Finds the latest record of each key in one pass over the records of one partition.

    A side is the set of winners as of one time. With two sides, one pass finds the winners as of
    two times.

    Attributes:
        share: The keys of this pass. The share gets smaller if its keys need too much memory.
        left: Shares of keys that are left for later passes.
    """

    def __init__(
        self, secret: bytes, share: Share = ALL_KEYS, *, sides: int = 1, memory_bytes: int
    ) -> None:
        """Begin a pass.

        Args:
            secret: 16 random bytes that producers don't know, the same in every pass.
            share: The keys of this pass.
            sides: Number of sides.
            memory_bytes: Approximate limit for the map.
        """
        self.share = share
        self.left: list[Share] = []
        self._hasher = make_hasher(SIPHASH, secret)
        self._memory_bytes = memory_bytes
        self._used = np.zeros(USED_FIELDS, np.int64)
        self._map = _new_map(sides, _ENTRIES_FIRST, _KEY_BYTES_FIRST)

    @property
    def count(self) -> int:
        """Number of keys."""
        return int(self._used[ENTRIES])

    def fold(self, candidates: Candidates) -> None:
        """Fold candidates: keep the record with the highest (version, offset) of each key."""
        rows = self._rows(candidates)
        row = self._fold(rows, 0)
        while row < len(candidates.offsets):
            self._make_room(int(rows.ends[row + 1]) - int(rows.ends[row]))
            row = self._fold(rows, row)

    def _fold(self, rows: KeyedRows, first: int) -> int:
        return fold_rows(rows, first, self.share.mask, self.share.bits, self._map, self._used)

    def _rows(self, candidates: Candidates) -> KeyedRows:
        keys = candidates.keys
        _, ends_buffer, data_buffer = keys.buffers()
        assert ends_buffer is not None
        ends = np.frombuffer(memoryview(ends_buffer), np.int32)[keys.offset :][: len(keys) + 1]
        data = np.frombuffer(memoryview(data_buffer or b""), np.uint8)
        hashes = np.empty((len(keys), 2), np.int64)
        hash_keys(data, ends.astype(np.int64), self._hasher, hashes)
        sides = candidates.sides
        if keys.null_count:
            sides = np.where(np.asarray(keys.is_null()), np.uint8(0), sides)
        return KeyedRows(
            keys=data,
            ends=ends,
            hashes=np.ascontiguousarray(hashes[:, 0]),
            versions=np.ascontiguousarray(candidates.versions),
            offsets=np.ascontiguousarray(candidates.offsets),
            is_dead=candidates.is_dead.astype(np.uint8),
            sides=sides,
        )

    # -- growing -----------------------------------------------------------------------------

    def _make_room(self, key_bytes: int) -> None:
        """Make room for one more key of `key_bytes` bytes: enlarge the map, or halve the share."""
        entries = len(self._map.hashes)
        keys = len(self._map.keys)
        if self.count == entries:
            entries *= 2
        while keys - self._used[KEY_BYTES] < key_bytes:
            keys *= 2
        sides = len(self._map.offsets)
        is_small = self.count <= _ENTRIES_SURE or self.share.mask.bit_length() >= _SHARE_BITS_MAX
        if is_small or _map_bytes(sides, entries, keys) <= self._memory_bytes:
            self._grow(entries, keys)
            return
        self.share, later = self.share.halves()
        self.left.append(later)
        keep_share(self._map, self._used, self.share.mask, self.share.bits)
        self._link()

    def _grow(self, entries: int, key_bytes: int) -> None:
        old, count, used = self._map, self.count, int(self._used[KEY_BYTES])
        new = _new_map(len(old.offsets), entries, key_bytes)
        new.hashes[:count] = old.hashes[:count]
        new.key_ends[: count + 1] = old.key_ends[: count + 1]
        new.keys[:used] = old.keys[:used]
        new.versions[:, :count] = old.versions[:, :count]
        new.offsets[:, :count] = old.offsets[:, :count]
        new.is_dead[:, :count] = old.is_dead[:, :count]
        self._map = new
        self._link()

    def _link(self) -> None:
        self._map.slots[:] = -1
        link_slots(self._map, self.count)

    # -- winners -----------------------------------------------------------------------------

    def offsets(self, side: int = 0) -> "Longs":
        """Return the winners' offsets by key; -1 if no record of the key counts on the side."""
        return self._map.offsets[side, : self.count]

    def living(self, side: int = 0) -> "npt.NDArray[np.bool_]":
        """Return whether each key has a winner that is not a tombstone."""
        is_living: npt.NDArray[np.bool_] = (self.offsets(side) >= 0) & (
            self._map.is_dead[side, : self.count] == 0
        )
        return is_living


def _new_map(sides: int, entries: int, key_bytes: int) -> WinnerMap:
    return WinnerMap(
        slots=np.full(2 * entries, -1, np.int32),
        hashes=np.empty(entries, np.int64),
        key_ends=np.zeros(entries + 1, np.int64),
        keys=np.empty(key_bytes, np.uint8),
        versions=np.empty((sides, entries), np.int64),
        offsets=np.empty((sides, entries), np.int64),
        is_dead=np.empty((sides, entries), np.uint8),
    )


def _map_bytes(sides: int, entries: int, key_bytes: int) -> int:
    """Return the size of a map in bytes."""
    return entries * (8 + 8 + 8 + 17 * sides) + key_bytes


def new_secret(source: "random.Random") -> bytes:
    """Return random bytes for hashing keys, so that producers can't choose keys that collide."""
    return source.getrandbits(128).to_bytes(16, "big")
