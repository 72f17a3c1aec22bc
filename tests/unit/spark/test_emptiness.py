"""Reasons why a range is empty; they name offsets of the log."""

import pytest

from tidelog.scan import LATEST, RequestedRange
from tidelog.scan.bounds import Bounds
from tidelog.spark.tasks import LogFacts, WhyEmpty, explain
from tidelog.types import TopicPartition

NAME = TopicPartition("tides", 3)
FULL = LogFacts(start=10, end=100, visible=100, first_ms=5_000, last_ms=9_000)
OPEN = LogFacts(start=0, end=60, visible=40)
WHOLE = LogFacts(start=0, end=100, visible=100, first_ms=5_000, last_ms=9_000)


@pytest.mark.parametrize(
    ("wanted", "facts", "why", "said"),
    [
        (
            RequestedRange(),
            LogFacts(start=0, end=0, visible=0),
            WhyEmpty.NEVER_WRITTEN,
            "never had records",
        ),
        (RequestedRange(), LogFacts(start=7, end=7, visible=7), WhyEmpty.DELETED, "below offset 7"),
        (
            RequestedRange(),
            LogFacts(start=0, end=9, visible=0),
            WhyEmpty.NOT_VISIBLE,
            "offset 0 on",
        ),
        (
            RequestedRange(start_offset=50),
            LogFacts(start=0, end=60, visible=40),
            WhyEmpty.NOT_VISIBLE,
            "40",
        ),
        (
            RequestedRange(start_offset=2, end_offset=10),
            FULL,
            WhyEmpty.DELETED,
            "starts at offset 10",
        ),
        (RequestedRange(end_offset=4), FULL, WhyEmpty.DELETED, "starts at offset 10"),
        (RequestedRange(start_offset=100), FULL, WhyEmpty.NOT_THERE, "ends at offset 100"),
        (RequestedRange(start_offset=LATEST), FULL, WhyEmpty.NOT_THERE, "ends at offset 100"),
        (RequestedRange(start_offset=20, end_offset=20), FULL, WhyEmpty.NOT_WANTED, "20 to 20"),
        (
            RequestedRange(limit_offset=5),
            FULL,
            WhyEmpty.NOT_WANTED,
            "below 5, but the log starts at",
        ),
        (
            RequestedRange(least_offset=30, limit_offset=20),
            FULL,
            WhyEmpty.NOT_WANTED,
            "at least 30 and below 20",
        ),
        (RequestedRange(least_offset=100), FULL, WhyEmpty.NOT_WANTED, "at least 100"),
        (RequestedRange(start_ms=1, end_ms=5_000), FULL, WhyEmpty.DELETED, "starts at offset 10"),
        (RequestedRange(start_ms=1, end_ms=5_000), WHOLE, WhyEmpty.NOT_THERE, "ends at 5000 ms"),
        (
            RequestedRange(start_ms=9_001),
            FULL,
            WhyEmpty.NOT_THERE,
            "latest time in the log is 9000",
        ),
        (RequestedRange(filter_ms=(9_001, 9_999)), FULL, WhyEmpty.NOT_THERE, "starts at 9001"),
        (RequestedRange(start_ms=6_000, end_ms=6_001), FULL, WhyEmpty.NOT_THERE, "in the range"),
        (
            RequestedRange(start_ms=6_000),
            LogFacts(start=0, end=9, visible=9),
            WhyEmpty.NOT_THERE,
            "has a time on this clock",
        ),
    ],
)
def test_reasons(wanted: RequestedRange, facts: LogFacts, why: WhyEmpty, said: str) -> None:
    found = explain(NAME, wanted, Bounds(20, 20, None), facts)
    assert found.why is why
    assert said in found.reason
    assert str(found).startswith("tides-3: nothing to read at offset 20: ")


def test_without_filters_on_offsets_a_log_with_one_record_is_empty_by_its_time() -> None:
    facts = LogFacts(start=0, end=1, visible=1, first_ms=5_000, last_ms=5_000)
    found = explain(NAME, RequestedRange(start_ms=6_000), Bounds(1, 1, None), facts)
    assert found.why is WhyEmpty.NOT_THERE
    assert "latest time in the log is 5000" in found.reason


def test_text_has_the_last_offset_of_a_range() -> None:
    empty = explain(NAME, RequestedRange(start_ms=1, end_ms=5), Bounds(20, 30, None), FULL)
    assert str(empty).startswith("tides-3: nothing to read in offsets 20 to 29: ")
