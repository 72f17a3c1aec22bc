"""Checks of an index of aborted transactions against the markers in the log.

Where the log is whole and nothing was compacted away, the index has exactly one right content.
Else each entry must still lead to an abort marker of its producer, and each marker of a
transaction that is still in the log must have an entry.
"""

from collections.abc import Iterator

from tidelog.errors import CorruptIndex
from tidelog.storage.checks.findings import Finding, derived
from tidelog.storage.checks.log_facts import LogFacts
from tidelog.storage.txn_index import ENTRY_SIZE, AbortedTxn, TxnIndex

_HIDES = "a reader of committed records would be shown aborted ones"


def check_txn_index(
    path: str, data: bytes, facts: LogFacts, *, is_exact: bool
) -> Iterator[Finding]:
    """What is wrong in a `.txnindex`.

    Args:
        path: The file.
        data: Its bytes; none where there is no such file.
        facts: What the log says.
        is_exact: Whether `facts.aborted` is all that can be right.
    """
    try:
        found = TxnIndex.decode(data, facts.base_offset).entries
    except CorruptIndex as error:
        yield derived(path, error.reason, position=error.at, offset=error.offset)
        return
    if not facts.is_whole:
        return
    if is_exact:
        yield from _compare(path, found, facts.aborted)
    else:
        yield from _hold_against_markers(path, found, facts)


def _compare(path: str, found: list[AbortedTxn], expected: list[AbortedTxn]) -> Iterator[Finding]:
    wanted = {entry.last_offset: entry for entry in expected}
    for slot, entry in enumerate(found):
        right = wanted.pop(entry.last_offset, None)
        if entry != right:
            says = "has none that ends there" if right is None else f"says {_words(right)}"
            damage = f"entry {slot} is {_words(entry)}, the log {says}"
            yield derived(path, damage, position=slot * ENTRY_SIZE, offset=entry.first_offset)
    yield from _missing(path, list(wanted.values()))


def _hold_against_markers(path: str, found: list[AbortedTxn], facts: LogFacts) -> Iterator[Finding]:
    for slot, entry in enumerate(found):
        if facts.markers.get(entry.last_offset) != entry.producer_id:
            damage = f"entry {slot} is {_words(entry)}, no abort marker of that producer is there"
            yield derived(path, damage, position=slot * ENTRY_SIZE, offset=entry.first_offset)
    covered = {entry.last_offset for entry in found}
    yield from _missing(path, [e for e in facts.aborted if e.last_offset not in covered])


def _missing(path: str, entries: list[AbortedTxn]) -> Iterator[Finding]:
    for entry in entries:
        damage = f"no entry for the aborted transaction {_words(entry)}: {_HIDES}"
        yield derived(path, damage, offset=entry.first_offset)


def _words(entry: AbortedTxn) -> str:
    return (
        f"(producer {entry.producer_id}, offsets {entry.first_offset} to {entry.last_offset},"
        f" stable {entry.last_stable_offset})"
    )
