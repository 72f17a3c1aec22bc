"""Damage: flipped bits in the middle and at the end of a log, and missing files."""

from pathlib import Path
from typing import TYPE_CHECKING

from tests.corpus.exchanges.batches import batch
from tests.corpus.exchanges.registry import append
from tests.corpus.exchanges.scripts.records import fetched, produced, searched
from tests.corpus.exchanges.session import NOW_MS, Stage

if TYPE_CHECKING:
    from tests.corpus.exchanges.values import Tree, Value

LOG = "00000000000000000000.log"
CLEAN = ".kafka_cleanshutdown"
TOPICS = ("first", "middle", "last", "gone", "index", "unclean")
ROUNDS = 3


def play(home: Path) -> Stage:
    """Write, stop, damage, start, and read everything."""
    with Stage(home, is_measured=True) as stage:
        for topic in TOPICS:
            stage.create_topic(topic, 1)
            for number in range(ROUNDS):
                append(stage, topic, batch(NOW_MS + number))
        stage.restart(lambda: _damage(home))
        for topic in TOPICS[:-1]:
            stage.chapter(topic)
            _asked(stage, topic)
        stage.chapter(TOPICS[-1])
        stage.restart(lambda: _unclean(home))
        _asked(stage, TOPICS[-1])
        stage.chapter("refused")
        made = batch(NOW_MS, [b"x" * 60])
        for number in (5, 16, 17, 21, 30, 60, len(made) - 1):
            broken = bytearray(made)
            broken[number] ^= 1
            stage.main.ask("produce", 9, produced(stage, bytes(broken), "index"), f"byte {number}")
        stage.main.ask("produce", 9, produced(stage, made[:-10], "index"), "too short")
        stage.main.ask("produce", 9, produced(stage, made + b"\0\0\0", "index"), "with more")
    return stage


def _flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def _log(home: Path, topic: str) -> Path:
    return home / f"{topic}-0" / LOG


def _damage(home: Path) -> None:
    batch_bytes = len(batch(NOW_MS))
    _flip(_log(home, "first"), 70)
    _flip(_log(home, "middle"), batch_bytes + 70)
    _flip(_log(home, "last"), 2 * batch_bytes + 70)
    _log(home, "gone").unlink()
    for name in ("index", "timeindex"):
        path = _log(home, "index").with_suffix(f".{name}")
        path.write_bytes(b"\xff" * 24)


def _unclean(home: Path) -> None:
    """Damage the end of a log and remove the clean shutdown mark, as after a power loss."""
    (home / CLEAN).unlink(missing_ok=True)
    _flip(_log(home, "unclean"), 2 * len(batch(NOW_MS)) + 70)


def _asked(stage: Stage, topic: str) -> None:
    main = stage.main
    for offset in (0, 2, 4):
        main.ask("fetch", 12, fetched(stage, offset, topic))
    for time in (-1, -2, -3, NOW_MS + 1):
        main.ask("list_offsets", 7, searched(time, topic=topic))
    main.ask("produce", 9, produced(stage, batch(NOW_MS + 9, [b"after"]), topic))
    main.ask("fetch", 12, fetched(stage, 0, topic), "once more")
    dirs: list[Value] = [{"topic": topic, "partitions": [0]}]
    tree: Tree = {"topics": dirs}
    main.ask("describe_log_dirs", 4, tree)
    main.ask("metadata", 9, {"topics": [{"name": topic}]})
