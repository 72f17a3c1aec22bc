"""Rules by which an audit compares the two rows of a key, one from each side.

The functions read only these rows, no records.

A key's row contains the key's last record (partition, offset, create time, digest of the value),
the number of the key's records, and two digests of all these records. One digest depends on the
order of the records, the other digest does not. The table lists the kinds of differences; the first
kind that applies to a key is the key's kind. If none applies, the key is equal. Exception: a key
whose two rows are equal can still be `reordered`. This happens if the last records of a partition's
keys are in different orders on A and B, and this key is one of the keys that have moved (see
`displaced`).

| kind | when |
|---|---|
| missing | A has the key and B does not |
| extra | B has the key and A does not |
| reordered | both have the same records of the key, in different orders; or the last records |
| | of several keys of a partition are in different orders, see `displaced` |
| stale | the last records differ, and B's is older by create time |
| ahead | the last records differ, and B's is newer by create time |
| changed | the last records differ, and create times don't show which is older |
| duplicated | the last records are equal, and B has more records of the key |
| versions | the last records are equal, earlier records differ, and B has no more records than A |

If `history` is false, only a key's last records are compared, and a key also counts as equal if it
is deleted on one side (its last record's value is null) and missing on the other side. Two last
records are equal if their create times and values are equal. If one side does not know the create
time, only the values are compared.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.jobs.audit.options import KINDS, Kind
from tidelog.lazy_dataclass import dataclass
from tidelog.record.columns.key_tables import KeyTable
from tidelog.record.kernels import key_rows
from tidelog.types import NO_TIMESTAMP

if TYPE_CHECKING:
    import numpy.typing as npt

    from tidelog.record.kernels.memory import Longs

    Mask = npt.NDArray[np.bool_]


# Maximum number of keys in a range of ranks (see `displaced`) for which a smallest set of moved
# keys is computed. In a larger range, every key whose rank on A differs from its rank on B is
# displaced.
BLOCK_MAX: Final = 1 << 20

# Number of a key's records if it is unknown.
UNKNOWN: Final = -1

# Layout of a row of differences. The field KIND holds the kind, as an index in `KINDS`. A's row
# begins at the field A_AT, and B's row at the field B_AT. If a side does not have the key, the
# count of records in that side's row is 0. DIFFERENCE_FIELDS is the number of fields.
KIND: Final = 0

A_AT: Final = 1
B_AT: Final = 1 + key_rows.FIELDS
DIFFERENCE_FIELDS: Final = 1 + 2 * key_rows.FIELDS

# Indexes of fields in a pair, which is a single row for a key that is equal on A and B. The fields
# are: partition and offset of the key's last record on A, partition and offset of its last record
# on B, create time and value digest of the last record on A, and number of the key's records on A.
PAIR_A_PARTITION: Final = 0

PAIR_A_OFFSET: Final = 1
PAIR_B_PARTITION: Final = 2
PAIR_B_OFFSET: Final = 3
PAIR_TIME: Final = 4
PAIR_VALUE: Final = 5
PAIR_COUNT: Final = 6
PAIR_FIELDS: Final = 7

_PAIR_OF_A: Final = (
    (PAIR_A_PARTITION, key_rows.PARTITION),
    (PAIR_A_OFFSET, key_rows.OFFSET),
    (PAIR_TIME, key_rows.TIME),
    (PAIR_VALUE, key_rows.VALUE),
    (PAIR_COUNT, key_rows.COUNT),
)

_PAIR_OF_B: Final = ((PAIR_B_PARTITION, key_rows.PARTITION), (PAIR_B_OFFSET, key_rows.OFFSET))


@dataclass(frozen=True, slots=True)
class KeyComparison:
    """Result of the comparison of two tables of keys.

    Attributes:
        differences: int64[n, DIFFERENCE_FIELDS], one row for each key that differs; superseded keys
            have no row.
        pairs: int64[m, PAIR_FIELDS], one row for each equal key whose records are in only one
            partition on each side. Keys in `unsure` have no row.
        deleted: Number of keys that count as equal because one side has deleted them and the other
            doesn't have them.
        superseded: Number of keys that differ but are not in `differences`. Compaction may have
            removed some of their records because of later records outside the compared range.
    """

    differences: "Longs"
    pairs: "Longs"
    deleted: int
    superseded: int


def compare(
    a: KeyTable, b_rows: "Longs", *, history: bool, unsure: KeyTable | None = None
) -> KeyComparison:
    """Compare two tables of keys.

    Args:
        a: The keys of A.
        b_rows: int64[n, FIELDS], one row for each key of B.
        history: Whether the records before a key's last record are compared, too.
        unsure: Keys that also have records outside the compared range. Because of these records,
            compaction may have removed records in the compared range. None if there are no such
            keys.
    """
    a_rows, numbers = a.rows, a.find(b_rows)
    in_both = numbers >= 0
    is_matched = np.zeros(len(a_rows), np.bool_)
    is_matched[numbers[in_both]] = True
    left, right = a_rows[numbers[in_both]], b_rows[in_both]
    kinds = _kinds(left, right, history=history)
    alone_a, deleted_a = _alone(a_rows[~is_matched], history=history)
    alone_b, deleted_b = _alone(b_rows[~in_both], history=history)
    differs = kinds >= 0
    parts = [
        _difference_rows(kinds[differs], left[differs], right[differs]),
        _difference_rows(_all(Kind.MISSING, alone_a), alone_a, np.zeros_like(alone_a)),
        _difference_rows(_all(Kind.EXTRA, alone_b), np.zeros_like(alone_b), alone_b),
    ]
    differences = np.concatenate(parts)
    is_sure = ~(_are_in(differences[:, A_AT:B_AT], unsure) | _are_in(differences[:, B_AT:], unsure))
    is_pair = ~differs & ~_are_in(left, unsure)
    return KeyComparison(
        differences=differences[is_sure],
        pairs=_pairs(left[is_pair], right[is_pair]),
        deleted=deleted_a + deleted_b,
        superseded=int((~is_sure).sum()),
    )


def _are_in(rows: "Longs", keys: KeyTable | None) -> "Mask":
    """Return a mask of the rows whose key is in a table.

    The mask is False for a row whose count of records is 0: that side does not have the key.
    """
    if keys is None:
        return np.zeros(len(rows), np.bool_)
    mask: Mask = (keys.find(np.ascontiguousarray(rows)) >= 0) & (rows[:, key_rows.COUNT] != 0)
    return mask


def _alone(rows: "Longs", *, history: bool) -> "tuple[Longs, int]":
    """Return the rows of keys that count as differences, and the number of the other rows.

    `rows` has one row for each key that only one side has. If `history` is true, all these keys
    count as differences. If `history` is false, a key whose last record is a tombstone does not
    count as a difference.
    """
    if history:
        return rows, 0
    is_deleted = rows[:, key_rows.VALUE] == 0
    return rows[~is_deleted], int(is_deleted.sum())


def _all(kind: Kind, rows: "Longs") -> "Longs":
    return np.full(len(rows), KINDS.index(kind), np.int64)


def _difference_rows(kinds: "Longs", left: "Longs", right: "Longs") -> "Longs":
    rows = np.empty((len(kinds), DIFFERENCE_FIELDS), np.int64)
    rows[:, KIND] = kinds
    rows[:, A_AT:B_AT], rows[:, B_AT:] = left, right
    return rows


def _kinds(left: "Longs", right: "Longs", *, history: bool) -> "Longs":
    """Return the index in `KINDS` of each key's kind; -1 if the key is equal."""
    a_ms, b_ms = left[:, key_rows.TIME], right[:, key_rows.TIME]
    knows_both = (a_ms != NO_TIMESTAMP) & (b_ms != NO_TIMESTAMP)
    older, newer = knows_both & (b_ms < a_ms), knows_both & (b_ms > a_ms)
    same_last = _are_equal(left, right, key_rows.VALUE) & ~older & ~newer
    cases = [(~same_last & older, Kind.STALE), (~same_last & newer, Kind.AHEAD)]
    cases.append((~same_last, Kind.CHANGED))
    if history:
        same_set = _are_equal(left, right, key_rows.COUNT) & _are_equal(left, right, key_rows.SET)
        same_order = _are_equal(left, right, key_rows.ORDER)
        # The order of a key's records is known only if all records of the key are in one partition.
        comparable = _in_one(left) & _in_one(right)
        cases.insert(0, (same_set & ~same_order & comparable, Kind.REORDERED))
        more = right[:, key_rows.COUNT] > left[:, key_rows.COUNT]
        cases += [(~same_set & more, Kind.DUPLICATED), (~same_set, Kind.VERSIONS)]
    kinds = np.full(len(left), -1, np.int64)
    for mask, kind in reversed(cases):
        kinds[mask] = KINDS.index(kind)
    return kinds


def _are_equal(left: "Longs", right: "Longs", field: int) -> "Mask":
    mask: Mask = left[:, field] == right[:, field]
    return mask


def _in_one(rows: "Longs") -> "Mask":
    """Return a mask of the keys whose records are in only one partition."""
    mask: Mask = rows[:, key_rows.PARTITION] >= 0
    return mask


def _pairs(left: "Longs", right: "Longs") -> "Longs":
    chosen = _in_one(left) & _in_one(right)
    left, right = left[chosen], right[chosen]
    pairs = np.empty((len(left), PAIR_FIELDS), np.int64)
    for fields, rows in ((_PAIR_OF_A, left), (_PAIR_OF_B, right)):
        for field, source in fields:
            pairs[:, field] = rows[:, source]
    return pairs


def differences_of_pairs(pairs: "Longs") -> "Longs":
    """Return rows of differences for displaced pairs; in each row, B's record count is UNKNOWN."""
    left = np.zeros((len(pairs), key_rows.FIELDS), np.int64)
    right = np.zeros_like(left)
    for fields, rows in ((_PAIR_OF_A, left), (_PAIR_OF_B, right)):
        for field, source in fields:
            rows[:, source] = pairs[:, field]
    for field in (key_rows.TIME, key_rows.VALUE):
        right[:, field] = left[:, field]
    right[:, key_rows.COUNT] = UNKNOWN
    return _difference_rows(_all(Kind.REORDERED, left), left, right)


def undelivered(rows: "Longs", partitions: Sequence[int], positions: Sequence[int]) -> "Longs":
    """Return rows of differences for keys whose last record a group has not read yet.

    Args:
        rows: int64[n, FIELDS], the rows of the keys of one side.
        partitions: Numbers of all partitions in the rows, ascending.
        positions: Next offset that the group reads in each of these partitions.
    """
    marked = rows[:, key_rows.PARTITION]
    plain = np.where(marked < 0, ~marked, marked)
    slot = np.searchsorted(np.asarray(partitions, np.int64), plain)
    behind = rows[rows[:, key_rows.OFFSET] >= np.asarray(positions, np.int64)[slot]]
    return _difference_rows(_all(Kind.UNDELIVERED, behind), np.zeros_like(behind), behind)


# -- the order of keys ----------------------------------------------------------------------------


def displaced(pairs: "Longs") -> "Longs":
    """Return the pairs of the keys whose last records are in different orders on A and B.

    The pairs with the same partition on A and the same partition on B are checked together. On each
    side, the keys are ranked by the offset of their last record. The ranks are divided into the
    smallest ranges that contain the same keys on both sides. In each range, the keys whose ranks on
    A and B differ are displaced. Exception: in a range of at most BLOCK_MAX keys, this function
    also finds a smallest set of keys whose removal leaves the other keys in the same order on both
    sides. If this set is less than half as large as the set of keys whose ranks differ, only the
    keys of the smaller set are displaced.

    Example: if two keys have changed places, both are displaced, but the keys between them are not.
    If one key has moved past many others, only this key is displaced.
    """
    order = np.lexsort(
        (pairs[:, PAIR_A_OFFSET], pairs[:, PAIR_B_PARTITION], pairs[:, PAIR_A_PARTITION])
    )
    pairs = pairs[order]
    groups = pairs[:, [PAIR_A_PARTITION, PAIR_B_PARTITION]]
    starts = np.flatnonzero((np.diff(groups, axis=0) != 0).any(axis=1)) + 1
    moved_groups = [group[_displaced(group[:, PAIR_B_OFFSET])] for group in np.split(pairs, starts)]
    moved: Longs = np.concatenate(moved_groups)
    return moved


def _displaced(offsets: "Longs") -> "Longs":
    """Return the indexes of displaced offsets.

    `offsets` has the offset of each key's last record on B; the keys are in the order of their last
    records on A. All offsets are distinct. If the offsets ascend, none is displaced.
    """
    if len(offsets) < 2 or (np.diff(offsets) > 0).all():
        return np.empty(0, np.int64)
    ranks = np.empty(len(offsets), np.int64)
    ranks[np.argsort(offsets)] = np.arange(len(offsets))
    ends = np.flatnonzero(np.maximum.accumulate(ranks) == np.arange(len(ranks))) + 1
    starts = np.concatenate(([0], ends[:-1]))
    is_wide = ends - starts > 1
    displaced_of_ranges = [
        start + _displaced_in(ranks[start:end] - start)
        for start, end in zip(starts[is_wide].tolist(), ends[is_wide].tolist(), strict=True)
    ]
    indexes: Longs = np.concatenate(displaced_of_ranges)
    return indexes


def _displaced_in(block: "Longs") -> "Longs":
    """Return the indexes of the numbers that are out of place.

    `block` has the numbers 0 to len(block) - 1 in some order. A number is out of place if it
    differs from its index in `block`. Exception: if `block` has at most BLOCK_MAX numbers, this
    function also finds a smallest set of numbers whose removal leaves the other numbers ascending.
    If this set is less than half as large as the set of numbers that differ from their index, only
    the numbers of the smaller set are out of place.
    """
    changed = np.flatnonzero(block != np.arange(len(block)))
    if len(changed) == 2 or len(block) > BLOCK_MAX:
        return changed
    out_of_order = _out_of_order(block.tolist())
    if len(changed) <= 2 * len(out_of_order):
        return changed
    return np.array(out_of_order, np.int64)


def _out_of_order(numbers: Sequence[int]) -> list[int]:
    """Return the indexes of a smallest set of numbers whose removal leaves the others ascending."""
    # Element n is the smallest number at which an ascending subsequence of n + 1 numbers ends.
    smallest_ends: list[int] = []
    end_indexes: list[int] = []  # index in `numbers` of each smallest last number
    before = [-1] * len(numbers)
    for index, number in enumerate(numbers):
        length = bisect_left(smallest_ends, number)
        before[index] = end_indexes[length - 1] if length else -1
        if length == len(end_indexes):
            smallest_ends.append(number)
            end_indexes.append(index)
        else:
            smallest_ends[length], end_indexes[length] = number, index
    ascending, index = set(), end_indexes[-1]
    while index >= 0:
        ascending.add(index)
        index = before[index]
    return [index for index in range(len(numbers)) if index not in ascending]
