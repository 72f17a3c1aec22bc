"""Changes of files by commands: both kinds of compaction, tiers, erasure, a standby.

A workload gets a directory of its own, creates `data` in it, and runs command lines with stopped
clocks. The commands' output is part of the recorded result.
"""

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tests.corpus import still
from tests.corpus.disk.library import HOUR_MS, MINUTE_MS, Notes
from tests.corpus.disk.served import LEADER
from tests.corpus.exchanges.batches import batch
from tests.corpus.exchanges.registry import append
from tests.corpus.exchanges.session import Stage
from tests.corpus.shell import command_line, run

import tidelog
from tidelog import ManualClock, NewRecord

Workload = Callable[[Path, Notes], None]
_SMALL: Final = {"internal.segment.bytes": "600", "index.interval.bytes": "100"}


def _command(notes: Notes, *arguments: str, hidden: str | None = None) -> None:
    """Run a command in the current directory and record its output."""
    ran = run(*arguments)
    for line in [command_line(list(arguments)), *ran.lines()]:
        notes.append(line if hidden is None else line.replace(hidden, "LEADER"))


def _rows(count: int, first: int = 0, keys: int = 6) -> list[NewRecord]:
    now_ms = still.now_ms()
    return [
        NewRecord(
            key=b"k%d" % (number % keys),
            value=None if number % 11 == 7 else b"%03d " % number + b"v" * 30,
            timestamp=now_ms - (number % 3) * 500,
        )
        for number in range(first, first + count)
    ]


def _filled(topic: str, turns: int = 6, **config: str) -> None:
    """Append to a topic of `data`, eight records every ten minutes."""
    named = {name.replace("_", "."): value for name, value in config.items()}
    with tidelog.open("data", writable=True) as directory:
        directory.create_topic(topic, config={**_SMALL, **named}, exist_ok=True)
        for turn in range(turns):
            still.advance(10 * MINUTE_MS)
            directory.append(topic, _rows(8, turn * 8), codec="lz4" if turn % 2 else "none")


def compact(_home: Path, notes: Notes) -> None:
    """Clean a topic by Kafka's rules.

    The topic is cleaned once, again after more appends, and again after `delete.retention.ms`.
    """
    _filled("t", cleanup_policy="compact", delete_retention_ms=f"{HOUR_MS}")
    _filled("u", cleanup_policy="compact", tidelog_compaction_strategy="timestamp")
    _filled("plain")
    _command(notes, "compact", "--plan", "--data", "data")
    _command(notes, "compact", "--data", "data")
    _filled("t", 3)
    _command(notes, "compact", "t", "--roll", "--data", "data")
    for _ in range(12):
        still.advance(6 * MINUTE_MS)
        _command(notes, "compact", "t", "--plan", "-o", "csv", "--data", "data")
    _command(notes, "compact", "--if-due", "--data", "data")
    still.advance(3 * HOUR_MS)
    _command(notes, "compact", "--if-due", "--data", "data")
    _command(notes, "compact", "plain", "--data", "data")


def generations(_home: Path, notes: Notes) -> None:
    """Compact with the generational scheduler: when the space limit is reached, and on request."""
    kind = {"tidelog_compaction_scheduler": "generational"}
    _filled("t", 10, cleanup_policy="compact", **kind)
    _command(notes, "compact", "--plan", "--data", "data")
    _command(notes, "compact", "--if-due", "--data", "data")
    _filled("t", 8)
    _command(notes, "compact", "--if-due", "--data", "data")
    _command(notes, "compact", "t", "--data", "data")


def tier(home: Path, notes: Notes) -> None:
    """Move segments to a store, delete local copies, apply retention to both, and read records."""
    kind = {"remote_storage_enable": "true", "local_retention_bytes": "700"}
    _filled("t", 8, retention_ms=f"{10 * HOUR_MS}", **kind)
    (home / "store").mkdir()
    place = ("--data", "data")
    _command(notes, "tier", "t", "--to", f"file://{home}/store", "--dry-run", *place)
    _command(notes, "tier", "t", "--to", f"file://{home}/store", *place)
    _command(notes, "tier", "t", "--status", *place)
    _command(notes, "read", "t", "-o", "csv", *place)
    _command(notes, "offsets", "t", "--at", f"{still.now_ms() - HOUR_MS}", *place)
    _filled("t", 3)
    _command(notes, "tier", "t", "--roll", *place)
    _command(notes, "tier", "t", "--verify", *place)
    still.advance(10 * HOUR_MS)
    _command(notes, "tier", "t", *place)
    for path in (home / "store").rglob("*"):  # the store reports mtimes
        os.utime(path, (still.now_ms() / 1000, still.now_ms() / 1000))
    still.advance(2 * HOUR_MS)
    _command(notes, "tier", "t", *place)
    (home / "store" / "nobody").write_bytes(b"of nobody")
    _command(notes, "tier", "t", "--collect", *place)
    _command(notes, "tier", "t", "--status", *place)
    _command(notes, "doctor", "data")


def erase(_home: Path, notes: Notes) -> None:
    """Find a key, erase its records, write some again, and erase them again."""
    _filled("t", 5)
    _filled("c", 5, cleanup_policy="compact")
    for topic in ("t", "c"):
        _command(notes, "erase", topic, "--key", "k3", "--data", "data")
        _command(notes, "erase", topic, "--key", "k3", "--execute", "--data", "data")
    _filled("t", 2)
    _command(notes, "erase", "t", "--key", "k3", "--execute", "--data", "data")
    _command(notes, "erase", "t", "--key", "nobody", "--execute", "--data", "data")


def tier_changes(home: Path, notes: Notes) -> None:
    """Erase a key in a tier, restore a lost and a damaged tier record, and apply retention.

    Afterwards an older copy of the directory takes the tier over. The command drops the tier's
    records that the copy lacks.
    """
    kind = {"remote_storage_enable": "true", "local_retention_bytes": "700"}
    _filled("t", 6, **kind)
    (home / "store").mkdir()
    place = ("--data", "data")
    _command(notes, "tier", "t", "--to", f"file://{home}/store", *place)
    shutil.copytree("data", "copy")
    _command(notes, "erase", "t", "--key", "k3", *place)
    _command(notes, "erase", "t", "--key", "k3", "--execute", *place)
    _command(notes, "read", "t", "-o", "csv", *place)
    record = Path("data/t-0/tidelog-tier.json")
    record.unlink()
    _command(notes, "read", "t", "--limit", "3", *place)
    _command(notes, "tier", "t", "--restore", *place)
    record.write_text("nonsense", encoding="utf-8")
    _command(notes, "tier", "t", "--status", *place)
    _command(notes, "tier", "t", "--restore", *place)
    _command(notes, "tier", "t", "--verify", *place)
    _filled("t", 2)
    _command(notes, "tier", "t", "--roll", *place)
    shutil.rmtree("data")
    shutil.move("copy", "data")
    _command(notes, "tier", "t", *place)
    _command(notes, "tier", "t", "--take-over", *place)
    _command(notes, "tier", "t", "--take-over", "--drop-theirs", *place)
    _command(notes, "read", "t", "-o", "csv", *place)


def follow(home: Path, notes: Notes) -> None:
    """A standby copies, continues after its leader has deleted records, and applies retention."""
    clock = ManualClock(still.now_ms())
    with Stage(home / "leader", LEADER, clock=clock) as stage:
        stage.create_topic("t", 2, internal_segment_bytes="600", retention_ms=f"{5 * HOUR_MS}")
        stage.create_topic("keyed", 1, cleanup_policy="compact")
        leader = f"127.0.0.1:{next(iter(stage.broker.ports.values()))}"

        def more(count: int) -> None:
            for number in range(count):
                stage.advance(10 * MINUTE_MS)
                still.advance(10 * MINUTE_MS)
                values = [b"%d %d" % (number, one) * 20 for one in range(4)]
                append(stage, "t", batch(clock.now_ms(), values), number % 2)
                append(stage, "keyed", batch(clock.now_ms(), values[:2], attributes=1))

        told = ("follow", leader, "--data", "data", "--once", "-o", "json")
        more(6)
        _command(notes, *told, hidden=leader)
        more(4)
        _command(notes, *told, "--config", "retention.bytes=1000", hidden=leader)
        part = {"partition_index": 0, "offset": 8}
        asked = {"topics": [{"name": "t", "partitions": [part]}], "timeout": 1000}
        stage.main.quiet("delete_records", 2, asked)  # type: ignore[arg-type] # JSON
        more(2)
        _command(notes, *told, "--topic", "t*", hidden=leader)
    _command(notes, "offsets", "t", "--at", f"{still.now_ms() - HOUR_MS}", "--data", "data")
    with tidelog.open("data", writable=True) as directory:
        directory.append("t", _rows(3), partition=0)


def asked(home: Path, notes: Notes) -> None:
    """Commands ask a running broker to compact a topic, move segments to a tier and erase a key."""
    clock = ManualClock(still.now_ms())
    # Background work is off, because it would run before or after a command at random.
    settings = {**LEADER, "log.initial.task.delay.ms": "864000000"}
    (home / "store").mkdir()
    place = ("--data", "data")
    with Stage(home / "data", settings, clock=clock) as stage:
        stage.create_topic("keyed", 1, cleanup_policy="compact", internal_segment_bytes="600")
        stage.create_topic("t", 1, internal_segment_bytes="600", local_retention_bytes="700")
        for number in range(6):
            stage.advance(10 * MINUTE_MS)
            still.advance(10 * MINUTE_MS)
            values = [b"%d %d" % (number, one) * 20 for one in range(4)]
            for topic in ("keyed", "t"):
                append(stage, topic, batch(clock.now_ms(), values))
        _command(notes, "compact", "keyed", "--roll", *place)
        _command(notes, "tier", "t", "--to", f"file://{home}/store", "--roll", *place)
        _command(notes, "erase", "keyed", "--key", "k1", "--execute", *place)
    _command(notes, "doctor", "data")


WORKLOADS: Final[Mapping[str, Workload]] = {
    "compact": compact,
    "compact-generations": generations,
    "tier": tier,
    "tier-changes": tier_changes,
    "erase": erase,
    "follow": follow,
    "asked-broker": asked,
}
