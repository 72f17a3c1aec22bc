"""An audit in one sentence, for the first line of the command and the head of its page."""

from collections import Counter
from typing import Final, NamedTuple

from tidelog.amounts import plural
from tidelog.jobs.audit.options import Kind
from tidelog.jobs.audit.results import AuditResults, TopicFigures


class KindTexts(NamedTuple):
    """A kind of difference in words: after a number of keys, and what exactly it means."""

    words: str
    meaning: str


KIND_TEXTS: Final = {
    Kind.MISSING: KindTexts("missing on B", "A has the key, B does not"),
    Kind.EXTRA: KindTexts("only on B", "B has the key, A does not"),
    Kind.REORDERED: KindTexts(
        "in another order", "the key's records, or keys among others, are in another order"
    ),
    Kind.STALE: KindTexts("older on B", "the last records differ, and B's is older by create time"),
    Kind.AHEAD: KindTexts("newer on B", "the last records differ, and B's is newer by create time"),
    Kind.CHANGED: KindTexts(
        "with another value",
        "the last records differ, and create times don't show which is older",
    ),
    Kind.DUPLICATED: KindTexts(
        "repeated on B", "the last records are equal, and B has more records of the key"
    ),
    Kind.VERSIONS: KindTexts(
        "with other versions", "the last records are equal, and earlier ones differ"
    ),
    Kind.UNDELIVERED: KindTexts(
        "not delivered to the group", "the group has not read the key's last record"
    ),
}


def audit_verdict(audited: AuditResults, a: str, b: str) -> str:
    """Return whether two places are equal, else in how many keys they differ and how.

    Args:
        audited: The results.
        a: Name of A.
        b: Name of B; of a group if only one was checked.
    """
    counts: Counter[Kind] = Counter()
    for topic in audited.topics:
        counts.update(topic.kinds)
    keys = sum(map(_keys, audited.topics))
    topics = plural(len(audited.topics), "topic")
    if audited.is_equal:
        return f"{a} and {b} are equal: {plural(keys, 'key')} in {topics}"
    differing = sum(counts.values())
    kinds = [f"{count:,} {KIND_TEXTS[kind].words}" for kind, count in counts.items() if count]
    parts = [
        f"{a} and {b} differ in {differing:,} of {plural(keys, 'key')}"
        + (f": {', '.join(kinds)}" if kinds else "")
    ]
    unkeyed = [topic.topic for topic in audited.topics if topic.unkeyed_equal is False]
    if unkeyed:
        names = plural(len(unkeyed), "topic")
        parts.append(f"records without a key differ in {names}")
    return "; ".join(parts)


def _keys(topic: TopicFigures) -> int:
    """Return the number of keys on either side, as far as it is known."""
    return max(topic.keys[0] + topic.kinds.get(Kind.EXTRA, 0), topic.keys[1])
