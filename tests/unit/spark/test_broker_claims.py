"""Repeated tasks skip rows that brokers already have, as the markers of each topic show."""

from typing import cast

import pytest

from tidelog.errors import CorruptMessage
from tidelog.spark import broker_sink
from tidelog.spark.broker_sink import Claim, ClaimedTopics, WriteOutcome
from tidelog.spark.sink_options import AppVersion, SinkOptions, StreamBatch, log_skipped
from tidelog.spark.transaction_markers import (
    Marker,
    Markers,
    decode_marker,
    encode_marker,
    last_marker,
)

KEY = "tidelog/app/3"


class Kept:
    """Existing markers."""

    def __init__(self, **batches: int) -> None:
        self.found = {KEY + name.replace("at_", "@"): Marker(n) for name, n in batches.items()}

    def committed(self, key: str, at_least: int) -> dict[str, Marker]:
        assert key == KEY
        return {name: marker for name, marker in self.found.items() if marker.batch >= at_least}


def claimed(kept: Kept, topic: str | None, batch: int) -> tuple[ClaimedTopics, bool]:
    made = ClaimedTopics(Claim(KEY, batch, topics_of=KEY), topic)
    return made, made.find_done(cast("Markers", kept)) is not None


def marked(found: ClaimedTopics) -> dict[str, Marker]:
    place, marks = found.marks("")
    assert place == KEY
    return {key.decode(): decode_marker(value) for key, value in marks}


def with_ids(own: Marker, topic_id: str, *, by_row: bool) -> tuple[bool, dict[str, Marker]]:
    """Return whether batch 2 is done in the topic with this id, and the markers to write."""
    kept = Kept()
    kept.found[f"{KEY}@odd"] = own
    name = None if by_row else "odd"
    found = ClaimedTopics(Claim(KEY, 2, topics_of=KEY), name, {"odd": topic_id}.__getitem__)
    is_done = found.find_done(cast("Markers", kept)) is not None
    return (found.is_done("odd") if by_row else is_done), marked(found)


@pytest.mark.parametrize("by_row", [True, False])
def test_a_recreated_topic_has_no_markers_of_the_former_topic(by_row: bool) -> None:
    is_done, marks = with_ids(Marker(7, "", "old"), "new", by_row=by_row)
    assert not is_done
    assert marks == {f"{KEY}@odd": Marker(2, "", "new")}


@pytest.mark.parametrize("by_row", [True, False])
@pytest.mark.parametrize(("marked_id", "topic_id"), [("same", "same"), ("", "new"), ("old", "")])
def test_a_topic_is_identified_by_its_name_if_its_id_is_unknown(
    marked_id: str,
    topic_id: str,
    by_row: bool,
) -> None:
    assert with_ids(Marker(7, "", marked_id), topic_id, by_row=by_row)[0]


def test_tasks_and_topics_of_a_write_have_transactional_ids_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    claims = list[Claim]()

    def sent(_options: SinkOptions, _rows: object, *, task: int, claim: Claim) -> WriteOutcome:
        claims.append(claim)
        return WriteOutcome(task)

    monkeypatch.setattr(broker_sink, "send", sent)
    for task in range(2):
        monkeypatch.setattr(broker_sink, "task_number", lambda task=task: task)
        for topic in ("a", "b", None):
            options = SinkOptions(
                bootstrap="east:9092",
                topic=topic,
                exactly_once=True,
                txn=AppVersion("app", 3),
            )
            broker_sink.BrokerWriter(options).write(iter(()))
    assert len({claim.transactional_id for claim in claims}) == 6
    keys = [claim.topics_of for claim in claims]
    assert keys == ["tidelog/app/0"] * 3 + ["tidelog/app/1"] * 3
    monkeypatch.setattr(broker_sink, "stream_batch", lambda: StreamBatch("query", 3))
    stream = SinkOptions(bootstrap="east:9092", topic="a", exactly_once=True)
    broker_sink.BrokerStreamWriter(stream).write(iter(()))
    assert claims[-1].transactional_id == "tidelog/query/1"
    assert {claim.batch for claim in claims} == {3}


def test_of_the_markers_of_a_key_those_of_the_newest_topic_count() -> None:
    read = [Marker(5), Marker(6, "", "a"), Marker(3, "", "a"), Marker(0, "", "b")]
    counts = None
    for marker in read[:3]:
        counts = last_marker(counts, marker)
    assert counts == read[1]
    assert last_marker(counts, read[3]) == read[3]


def test_markers_of_clusters_without_ids_have_none() -> None:
    assert decode_marker(b'{"version": 1, "batch": 4, "note": "n"}') == Marker(4, "n")
    assert encode_marker(Marker(4, "n")) == b'{"version": 1, "batch": 4, "note": "n"}'
    assert decode_marker(encode_marker(Marker(4, "n", "id"))) == Marker(4, "n", "id")
    with pytest.raises(CorruptMessage):
        decode_marker(b'{"version": 1, "batch": 4, "topic_id": 5}')
    with pytest.raises(CorruptMessage):
        decode_marker(b"[" * 100_000)


def test_a_marker_of_one_topic_does_not_affect_another() -> None:
    kept = Kept(at_even=4)
    assert claimed(kept, "even", 4)[1]
    found, is_done = claimed(kept, "odd", 4)
    assert not is_done
    assert marked(found) == {f"{KEY}@odd": Marker(4)}


@pytest.mark.parametrize("last", [4, 6])
def test_a_topic_of_all_rows_that_has_the_batch_is_skipped(last: int) -> None:
    made = ClaimedTopics(Claim(KEY, 4, topics_of=KEY), "even")
    outcome = made.find_done(cast("Markers", Kept(at_even=last)))
    assert outcome == WriteOutcome(0, was_done=True, skipped={"even": last})


def test_rows_that_name_their_topic_are_written_to_topics_without_them() -> None:
    found, is_done = claimed(Kept(at_even=4), None, 2)
    assert not is_done
    assert [found.is_done(topic) for topic in ("odd", "even", "new")] == [False, True, False]
    assert found.skipped == {"even": 4}
    assert marked(found) == {f"{KEY}@new": Marker(2), f"{KEY}@odd": Marker(2)}


def test_a_query_counts_all_topics_together() -> None:
    made = ClaimedTopics(Claim(KEY, 4), "odd")
    done = made.find_done(cast("Markers", Kept(**{"": 4})))
    assert done is not None
    assert done.skipped == {}
    assert marked(ClaimedTopics(Claim(KEY, 5), None)) == {KEY: Marker(5)}


def test_a_smaller_version_than_the_last_one_is_an_error_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A smaller version may be that of a new checkpoint, whose versions start again from 0.

    No row is written. A repeat of the last version is only a warning.
    """
    log_skipped(AppVersion("app", 3), {"even": 3, "odd": 41}, "/data")
    assert [record.levelname for record in caplog.records] == ["WARNING", "ERROR"]
    repeat, smaller = (record.getMessage() for record in caplog.records)
    assert "txnVersion 3 of txnAppId 'app' to topic even (/data) was committed before" in repeat
    assert "to topic odd (/data) WROTE NOTHING: version 41 was committed before" in smaller
    assert "give a new txnAppId" in smaller
