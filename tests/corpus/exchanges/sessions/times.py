"""Effects of time: fetches that wait, retention, expiry, idle connections."""

from pathlib import Path
from typing import TYPE_CHECKING

from tests.corpus.exchanges.batches import batch
from tests.corpus.exchanges.registry import append
from tests.corpus.exchanges.scripts.groups import ready
from tests.corpus.exchanges.scripts.offsets import committed
from tests.corpus.exchanges.scripts.records import fetched, produced, searched
from tests.corpus.exchanges.session import NOW_MS, Stage

if TYPE_CHECKING:
    from tests.corpus.exchanges.values import Tree

MINUTE_MS = 60_000
DAY_MS = 24 * 60 * MINUTE_MS


def play(home: Path) -> Stage:
    """Let time pass."""
    with Stage(home, is_measured=True) as stage:
        ready(stage)
        _waited(stage)
        _retained(stage)
        _idle(stage)
        _expired(stage)
    return stage


def _waited(stage: Stage) -> None:
    stage.chapter("waited")
    reader, main = stage.line("reader"), stage.main
    tree: Tree = {**fetched(stage, 5), "max_wait": 500}
    reader.send("fetch", 12, tree, "waits for records")
    stage.settle()
    reader.note_silence()
    main.ask("produce", 9, produced(stage, batch(NOW_MS, [b"come"])))
    reader.receive()
    reader.send("fetch", 12, {**tree, "min_bytes": 100_000}, "waits for more than there is")
    stage.settle()
    stage.advance(499)
    stage.settle()
    reader.note_silence()
    stage.advance(1)
    reader.receive()


def _retained(stage: Stage) -> None:
    stage.chapter("retained")
    stage.create_topic("aged", 1, retention_ms=str(10 * MINUTE_MS), segment_ms=str(MINUTE_MS))
    stage.open_all()
    for number in range(4):
        made = batch(stage.clock.now_ms(), [b"%d" % number])
        stage.main.ask("produce", 9, produced(stage, made, "aged"))
        stage.advance(2 * MINUTE_MS)
    stage.main.ask("list_offsets", 7, searched(-2, topic="aged"), "where it begins")
    for _ in range(3):
        stage.advance(3 * MINUTE_MS)
        stage.main.ask("list_offsets", 7, searched(-2, topic="aged"), "where it begins")
    stage.main.ask("fetch", 12, fetched(stage, 0, "aged"), "what is gone")
    stage.create_topic("large", 1, retention_bytes="2000", segment_bytes="1048576")
    for _ in range(3):
        made = batch(stage.clock.now_ms(), [b"x" * 600_000])
        append(stage, "large", made)
    stage.advance(6 * MINUTE_MS)
    stage.main.ask("list_offsets", 7, searched(-2, topic="large"), "where it begins")


def _idle(stage: Stage) -> None:
    stage.chapter("idle")
    line = stage.line("idle")
    line.ask("metadata", 9, {"topics": []})
    stage.advance(11 * MINUTE_MS)
    line.ask("metadata", 9, {"topics": []}, "after eleven minutes")
    stage.main.close()


def _expired(stage: Stage) -> None:
    stage.chapter("expired")
    stage.main.ask("offset_commit", 7, committed(stage, "g", 3))
    stage.advance(6 * DAY_MS)
    stage.main.close()  # the broker has also closed this idle connection
    tree: Tree = {"group_id": "g", "topics": None}
    stage.main.ask("offset_fetch", 7, tree, "after six days")
    stage.advance(DAY_MS + 11 * MINUTE_MS)
    stage.main.close()
    stage.main.until("offset_fetch", 7, tree, "topics", to=[])
    stage.main.ask("offset_fetch", 7, tree, "after a week")
    stage.main.ask("list_groups", 5, {"states_filter": [], "types_filter": []})
    stage.main.ask("list_offsets", 7, searched(-2), "what retention has left")
