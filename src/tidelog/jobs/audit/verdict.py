"""An audit in one sentence, for the first line of the command and the head of its page."""

from collections import Counter

from tidelog.amounts import plural
from tidelog.jobs.audit.options import Kind
from tidelog.jobs.audit.results import AuditResults, TopicFigures

# Kinds in words that need no explanation.
KIND_WORDS = {
    Kind.MISSING: "missing on B",
    Kind.EXTRA: "only on B",
    Kind.REORDERED: "in another order",
    Kind.STALE: "older on B",
    Kind.AHEAD: "newer on B",
    Kind.CHANGED: "with another value",
    Kind.DUPLICATED: "repeated on B",
    Kind.VERSIONS: "with other versions",
    Kind.UNDELIVERED: "not delivered to the group",
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
    kinds = [f"{count:,} {KIND_WORDS[kind]}" for kind, count in counts.items() if count]
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
