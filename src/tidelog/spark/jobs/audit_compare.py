"""What a worker does for an audit second: holds the keys of some chunks of both sides together.

The chunks that a task takes are those of a range of hashes, so each key is in one task, with all
files of all partitions that may have it.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from tidelog.env import Env, os_env
from tidelog.errors import CorruptFile
from tidelog.record.coding import crc32c
from tidelog.record.kernels import digests
from tidelog.scan.key_tables import KeyTable, joined
from tidelog.spark.jobs import audit_rules
from tidelog.spark.jobs.audit_files import read_rows
from tidelog.spark.jobs.audit_kinds import KINDS
from tidelog.spark.jobs.audit_rules import KIND, PAIR_FIELDS
from tidelog.storage.files import read_exactly, write_fully

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Longs

COMPARED: Final = "counts string, found binary"
PAIRS_SUFFIX: Final = ".pairs.rows"


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparePart:
    """Compares chunks of a topic; a `Work`.

    Attributes:
        folder: Where rows are, and pairs go.
        found_max: Keys of each kind that are handed back, at most; all are counted.
        wants_order: Whether the order of keys is looked at later.
    """

    folder: str
    found_max: int
    wants_order: bool

    def __call__(self, part: str) -> tuple[object, ...]:
        """See `Work`; `part` is a JSON object.

        Its fields: `files` (of both sides: for each partition its number and its files in the order
        of offsets; null for a side that there is not), `chunks` ([start, end)), `history` (see
        `audit_rules.compare`), `positions` (partition -> offset of a group on the last side; null
        without a group), `behind` (files of records that are not compared, see `audit_behind`).
        """
        fields, env = json.loads(part), os_env()
        start, end = fields["chunks"]
        counts: dict[str, object] = {"damaged": []}
        sides = []
        for files in fields["files"]:
            rows = None if files is None else self._side(env, files, start, end, counts)
            sides.append(rows)
        behind = self._side(env, fields["behind"], start, end, counts)
        if counts["damaged"]:
            return json.dumps(counts), b""
        found = self._compare(env, sides, fields, counts, _table_of(behind))
        return json.dumps(counts), found.tobytes()

    def _side(
        self,
        env: Env,
        files: Sequence[tuple[int, Sequence[str]]],
        start: int,
        end: int,
        counts: dict[str, object],
    ) -> "Longs":
        """The rows of a side, one for each key."""
        partitions, damaged = [], counts["damaged"]
        assert isinstance(damaged, list)
        for _, names in files:
            tables = []
            for name in names:
                try:
                    tables.append(read_rows(env, f"{self.folder}/{name}", start, end))
                except (CorruptFile, FileNotFoundError):
                    damaged.append(name)
            partitions.append(joined(tables))
        return joined(partitions, across=True)

    def _compare(
        self,
        env: Env,
        sides: "Sequence[Longs | None]",
        fields: Mapping[str, object],
        counts: dict[str, object],
        unsure: KeyTable | None,
    ) -> "Longs":
        a_rows, b_rows = sides
        assert a_rows is not None
        found = [np.empty((0, audit_rules.FOUND_FIELDS), np.int64)]
        counts["a_keys"], counts["b_keys"], counts["deleted"] = len(a_rows), 0, 0
        if b_rows is not None:
            table = KeyTable(max(len(a_rows), 1))
            table.add(a_rows)
            compared = audit_rules.compare(
                table, b_rows, history=bool(fields["history"]), unsure=unsure
            )
            found.append(compared.found)
            counts["b_keys"], counts["deleted"] = len(b_rows), compared.deleted
            counts["superseded"] = compared.superseded
            if self.wants_order:
                counts["pairs"] = self._keep_pairs(env, compared.pairs)
        positions = fields["positions"]
        if isinstance(positions, dict):
            last = a_rows if b_rows is None else b_rows
            by_number = {int(number): int(offset) for number, offset in positions.items()}
            partitions = sorted(by_number)
            offsets = [by_number[number] for number in partitions]
            found.append(audit_rules.undelivered(last, partitions, offsets))
        return self._limited(np.concatenate(found), counts)

    def _limited(self, found: "Longs", counts: dict[str, object]) -> "Longs":
        """Count all that was found, and keep so many of each kind."""
        kept = []
        for number, kind in enumerate(KINDS):
            mine = found[found[:, KIND] == number]
            counts[kind.value] = len(mine)
            kept.append(mine[: self.found_max])
        return np.concatenate(kept)

    def _keep_pairs(self, env: Env, pairs: "Longs") -> list[object]:
        """Write pairs to a file; its name, checksum, and the count of each pair of partitions."""
        order = np.lexsort(
            (pairs[:, audit_rules.PAIR_B_PARTITION], pairs[:, audit_rules.PAIR_A_PARTITION])
        )
        pairs = pairs[order]
        places = pairs[:, [audit_rules.PAIR_A_PARTITION, audit_rules.PAIR_B_PARTITION]]
        groups, counts = np.unique(places, axis=0, return_counts=True)
        name = f"{env.random.getrandbits(64):016x}{PAIRS_SUFFIX}"
        file = env.files.open(f"{self.folder}/{name}", write=True, create=True)
        try:
            write_fully(file, np.ascontiguousarray(pairs, "<i8").tobytes(), 0)
        finally:
            file.close()
        cut = np.cumsum(counts)[:-1]
        sums = [crc32c(np.ascontiguousarray(g, "<i8").tobytes()) for g in np.split(pairs, cut)]
        sections = [
            [*group, count, crc]
            for group, count, crc in zip(groups.tolist(), counts.tolist(), sums, strict=False)
        ]
        return [name, sections]


def _table_of(rows: "Longs") -> KeyTable | None:
    """Keys to look up; None where there are none."""
    if not len(rows):
        return None
    table = KeyTable(len(rows))
    table.add(rows)
    return table


ORDERED: Final = "displaced binary"


@dataclass(frozen=True, slots=True)
class OrderPart:
    """Looks at the order of the keys of one pair of partitions; a `Work`."""

    folder: str

    def __call__(self, part: str) -> tuple[object, ...]:
        """See `Work`; `part` is a JSON list of sections: file, first pair, count, checksum."""
        return (displaced_in(os_env(), self.folder, json.loads(part)).tobytes(),)


def displaced_in(env: Env, folder: str, sections: Sequence[tuple[str, int, int, int]]) -> "Longs":
    """The displaced pairs of sections of files, see `audit_rules.displaced`.

    Raises:
        CorruptFile: A file of pairs is not as it was written.
    """
    parts = []
    for name, first, count, crc in sections:
        file = env.files.open(f"{folder}/{name}")
        try:
            data = read_exactly(file, count * PAIR_FIELDS * 8, first * PAIR_FIELDS * 8)
        finally:
            file.close()
        if crc32c(data) != crc:
            raise CorruptFile("pairs that do not match their checksum", path=f"{folder}/{name}")
        parts.append(np.frombuffer(data, "<i8").reshape(-1, PAIR_FIELDS).astype(np.int64))
    return audit_rules.displaced(np.concatenate(parts))


assert digests.FIELDS * 2 + 1 == audit_rules.FOUND_FIELDS
