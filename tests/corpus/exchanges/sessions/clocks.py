"""The append clock: lookups by append time, append times in responses, a clock that is set back."""

from pathlib import Path

from tests.corpus.exchanges.batches import batch
from tests.corpus.exchanges.codec import TAGS
from tests.corpus.exchanges.scripts.records import WITH_TIMES, fetched, produced, searched
from tests.corpus.exchanges.session import NOW_MS, Stage

HOUR_MS = 3_600_000
TOPICS = {
    "plain": {},
    "append": {"tidelog_lookup_clock": "append"},
    "stamped": {"message_timestamp_type": "LogAppendTime"},
    "exposed": {"tidelog_expose_append_time": "true"},
    "coarse": {"tidelog_append_time_granularity_ms": "1000", "tidelog_lookup_clock": "append"},
}


def play(home: Path) -> Stage:
    """Append batches 700 ms apart, created an hour before their append; look up by both clocks."""
    with Stage(home, is_measured=True) as stage:
        for topic, configs in TOPICS.items():
            stage.create_topic(topic, 1, **configs)
        for number in range(5):
            for topic in TOPICS:
                stage.chapter(topic)
                made = batch(NOW_MS - HOUR_MS + 10 * number, [b"a", b"b"])
                stage.main.ask("produce", 9, produced(stage, made, topic))
            stage.advance(700)
        for topic in TOPICS:
            stage.chapter(topic)
            _looked_up(stage, topic)
        stage.chapter("back")
        _run_back(stage)
        stage.chapter("restarted")
        stage.restart()
        for topic in TOPICS:
            _looked_up(stage, topic)
    return stage


def _looked_up(stage: Stage, topic: str) -> None:
    main = stage.main
    late = NOW_MS - HOUR_MS
    for time in (-1, -2, -3, 0, late, late + 11, late + 40, NOW_MS, NOW_MS + 701, NOW_MS + 2800):
        main.ask("list_offsets", 7, searched(time, topic=topic))
    main.ask("list_offsets", 7, searched(NOW_MS + 10 * HOUR_MS, topic=topic))
    main.ask("fetch", 12, fetched(stage, 0, topic))
    main.ask("fetch", 12, {**fetched(stage, 3, topic), TAGS: WITH_TIMES}, "with append times")
    main.ask("fetch", 4, fetched(stage, 2, topic), "in an old version")


def _run_back(stage: Stage) -> None:
    """Set wall time back by an hour: append times stay constant until wall time has caught up."""
    stage.note("the wall clock is set back by an hour")
    stage.clock.jump(stage.clock.now_ms() - HOUR_MS)
    for topic in ("append", "stamped", "exposed"):
        made = batch(NOW_MS - HOUR_MS, [b"back"])
        stage.main.ask("produce", 9, produced(stage, made, topic))
        stage.main.ask("fetch", 12, {**fetched(stage, 10, topic), TAGS: WITH_TIMES})
        stage.main.ask("list_offsets", 7, searched(NOW_MS - 10, topic=topic))
    stage.note("the wall clock is set an hour ahead")
    stage.clock.jump(stage.clock.now_ms() + 2 * HOUR_MS)
    made = batch(NOW_MS, [b"ahead"])
    stage.main.ask("produce", 9, produced(stage, made, "append"))
    stage.note("the wall clock is set back by three hours")
    stage.clock.jump(stage.clock.now_ms() - 3 * HOUR_MS)
    stage.main.ask("produce", 9, produced(stage, made, "append"), "far ahead of the clock")
    stage.main.ask("produce", 9, produced(stage, made, "plain"), "far ahead of the clock")
    stage.clock.jump(stage.clock.now_ms() + 2 * HOUR_MS)
