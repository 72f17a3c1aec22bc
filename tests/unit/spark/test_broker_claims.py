"""Which rows of a task are at the brokers already: by topic for numbered writes."""

from typing import cast

import pytest

from tidelog.spark.broker_claims import Claim, ClaimedTopics
from tidelog.spark.broker_markers import Marker, Markers
from tidelog.spark.sink_options import AppVersion, log_skipped

KEY = "tidelog/app/3"


class Kept:
    """Markers that are there."""

    def __init__(self, **batches: int) -> None:
        self.found = {KEY + name.replace("at_", "@"): Marker(n) for name, n in batches.items()}

    def done(self, key: str, at_least: int) -> dict[str, Marker]:
        assert key == KEY
        return {name: marker for name, marker in self.found.items() if marker.batch >= at_least}


def claimed(kept: Kept, topic: str | None, batch: int) -> tuple[ClaimedTopics, bool]:
    made = ClaimedTopics(Claim(KEY, batch, topics_of=KEY), topic)
    return made, made.find_done(cast("Markers", kept)) is not None


def test_a_marker_of_one_topic_says_nothing_of_another() -> None:
    kept = Kept(at_even=4)
    assert claimed(kept, "even", 4)[1]
    found, is_done = claimed(kept, "odd", 4)
    assert not is_done
    assert found.marks("")[1] == [f"{KEY}@odd".encode()]


def test_rows_that_name_their_topic_go_where_they_are_missing() -> None:
    found, is_done = claimed(Kept(at_even=4), None, 2)
    assert not is_done
    assert [found.is_done(topic) for topic in ("odd", "even", "new")] == [False, True, False]
    assert found.skipped == {"even": 4}
    place, keys, _ = found.marks("")
    assert (place, keys) == (KEY, [f"{KEY}@new".encode(), f"{KEY}@odd".encode()])


def test_a_marker_for_all_topics_together_still_counts() -> None:
    """Earlier releases wrote one for each task of a numbered write, whatever its topics."""
    made = ClaimedTopics(Claim(f"{KEY}@odd", 4, topics_of=KEY), "odd")
    done = made.find_done(cast("Markers", Kept(**{"": 4})))
    assert done is not None
    assert (done.was_done, dict(done.skipped)) == (True, {"odd": 4})
    assert not claimed(Kept(**{"": 4}), "odd", 5)[1]


def test_a_query_counts_all_topics_together() -> None:
    made = ClaimedTopics(Claim(KEY, 4), "odd")
    done = made.find_done(cast("Markers", Kept(**{"": 4})))
    assert done is not None
    assert done.skipped == {}
    assert ClaimedTopics(Claim(KEY, 5), None).marks("")[1] == [KEY.encode()]


def test_a_smaller_version_than_the_last_one_is_an_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A new checkpoint counts from 0 again; a repeat of the last version is a warning."""
    log_skipped(AppVersion("app", 3), {"even": 3, "odd": 41}, "/data")
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
    repeat, smaller = (record.getMessage() for record in caplog.records)
    assert "txnVersion 3 of txnAppId 'app' to topic even (/data) was committed before" in repeat
    assert "to topic odd (/data) WROTE NOTHING: version 41 was committed before" in smaller
    assert "give a new txnAppId" in smaller
