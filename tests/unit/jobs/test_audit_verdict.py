"""The sentence about an audit: equal, one difference, many, and records without a key."""

import dataclasses

from tidelog.cli.jobs.audit import took
from tidelog.jobs.audit.options import Kind
from tidelog.jobs.audit.results import KIND_TEXTS, AuditResults, TopicFigures, audit_verdict


def audited(*topics: TopicFigures) -> AuditResults:
    return AuditResults(
        differences=(),
        topics=topics,
        buckets=(),
        cuts={},
        log_bytes=0,
        state_bytes=0,
        all_bytes=0,
        kept_runs=0,
        chance=0.0,
        notes=(),
    )


def topic(
    keys: tuple[int, int], *, unkeyed_equal: bool | None = None, **kinds: int
) -> TopicFigures:
    by_kind = {Kind(name): count for name, count in kinds.items()}
    return TopicFigures(topic="t", keys=keys, kinds=by_kind, unkeyed_equal=unkeyed_equal)


def test_equal() -> None:
    assert audit_verdict(audited(), "A", "B") == "A and B are equal: 0 keys in 0 topics"
    one = audited(topic((1, 1)))
    assert audit_verdict(one, "A", "B") == "A and B are equal: 1 key in 1 topic"
    two = audited(topic((1_000, 1_000)), topic((5, 5)))
    assert audit_verdict(two, "A", "B") == "A and B are equal: 1,005 keys in 2 topics"


def test_one_difference() -> None:
    one = audited(topic((2, 1), missing=1))
    assert audit_verdict(one, "A", "B") == "A and B differ in 1 of 2 keys: 1 missing on B"


def test_many_differences() -> None:
    many = audited(topic((612, 604), missing=9, extra=1, stale=17))
    assert audit_verdict(many, "east", "west") == (
        "east and west differ in 27 of 613 keys: 9 missing on B, 1 only on B, 17 older on B"
    )


def test_records_without_a_key() -> None:
    bad = audited(topic((3, 3), unkeyed_equal=False))
    assert audit_verdict(bad, "A", "B") == (
        "A and B differ only in records without a key in 1 topic; 3 keys are equal"
    )
    both = audited(topic((3, 3), stale=1, unkeyed_equal=False))
    assert audit_verdict(both, "A", "B") == (
        "A and B differ in 1 of 3 keys: 1 older on B; and in records without a key in 1 topic"
    )


def test_each_kind_has_words() -> None:
    assert set(KIND_TEXTS) == set(Kind)


def test_bytes_read_are_left_out_for_brokers_which_do_not_report_them() -> None:
    clusters = audited(topic((3, 3)))
    assert took(clusters, 2.0) == "0 records compared, in 2.0 s: 0 records/s"
    directories = dataclasses.replace(clusters, log_bytes=50, all_bytes=100)
    assert took(directories, 2.0).startswith("0 records compared, 50 B read (50% of the logs), in")
