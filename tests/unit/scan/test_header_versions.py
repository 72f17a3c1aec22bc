"""Versions of records in a header."""

import pyarrow as pa

from tidelog.scan.keyed_table import header_versions
from tidelog.scan.table_rules import MISSING_VERSION
from tidelog.types import INT64_MIN

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def version(number: int) -> bytes:
    return number.to_bytes(8, "big", signed=True)


def test_the_last_header_with_the_name_has_the_version() -> None:
    told = [
        [("v", version(3)), ("w", version(9)), ("v", version(-4))],
        [("v", version(3)), ("v", b"seven b")],
        [("w", version(1))],
        None,
    ]
    found = header_versions(pa.array(told, HEADERS), "v")
    assert found.tolist() == [-4, MISSING_VERSION, MISSING_VERSION, MISSING_VERSION]


def test_the_lowest_version_beats_none() -> None:
    """The lowest version outranks a missing version, as in compaction (docs/compaction.md)."""
    (found,) = header_versions(pa.array([[("v", version(INT64_MIN))]], HEADERS), "v").tolist()
    assert found > MISSING_VERSION
