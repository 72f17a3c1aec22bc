"""The same appends create the same files: log, both indexes, aborted transactions, snapshots."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.peers.ours import kafka_files, run_ours
from tests.peers.scripts import EPOCH_LIMIT, client_script, follower_script
from tests.worlds.kafka.compare import batches_in
from tests.worlds.kafka.oracle import Oracle, Script
from tests.worlds.records.legacy_sets import build_legacy_set
from tests.worlds.records.samples import T0
from tests.worlds.repetition import rarely

from tidelog.record.builder import build_batch
from tidelog.record.header import assign_offset
from tidelog.types import Codec, NewRecord

pytestmark = pytest.mark.kafka

SEEDS_PER_TEST = 20
TESTS = 5
SEEDS = range(0, SEEDS_PER_TEST * TESTS, SEEDS_PER_TEST)


def comparable(answers: list[object]) -> list[object]:
    """Return the last offset of each append, or the error code if the append was refused.

    First offsets are not compared, because Kafka returns no first offset if a follower appends
    batches of old formats.
    """
    found: list[object] = []
    for answer in answers:
        assert isinstance(answer, dict)
        found.append(("code", answer["code"]) if "error" in answer else answer["last_offset"])
    return found


def live_twice(oracle: Oracle, script: Script, folder: Path) -> tuple[Path, Path]:
    """Run a script on both sides and compare the results; return Kafka's folder and ours."""
    theirs = folder / "kafka" / "events-0"
    ours = folder / "ours" / "events-0"
    told = comparable(oracle.run(replace(script, directory=theirs)))
    assert comparable(run_ours(replace(script, directory=ours))) == told
    return theirs, ours


def assert_same_files(theirs: Path, ours: Path) -> dict[str, bytes]:
    """Compare every file of Kafka byte by byte; return the files."""
    expected, made = kafka_files(theirs), kafka_files(ours)
    assert sorted(made) == sorted(expected)
    assert [name for name in expected if made[name] != expected[name]] == []
    return made


@pytest.mark.parametrize("make", [client_script, follower_script])
@pytest.mark.parametrize("first", [*SEEDS[:2], *map(rarely, SEEDS[2:])])
def test_files_are_byte_equal(
    kafka_oracle: Oracle, quick_path: Path, make: Callable[[int, Path], Script], first: int
) -> None:
    suffixes: dict[str, int] = {}
    for seed in range(first, first + SEEDS_PER_TEST):
        folder = quick_path / str(seed)
        made = assert_same_files(*live_twice(kafka_oracle, make(seed, folder), folder))
        for name, content in made.items():
            suffix = name.rpartition(".")[2]
            suffixes[suffix] = suffixes.get(suffix, 0) + len(content)
    # The comparison would be worthless if the scripts created few segments and entries.
    assert min(suffixes["log"] / 25_000, suffixes["index"] / 800, suffixes["timeindex"] / 800) > 1
    assert "txnindex" in suffixes or make is follower_script


@pytest.mark.parametrize("first", [*SEEDS[:2], *map(rarely, SEEDS[2:])])
def test_repeated_and_lost_batches_get_equal_responses(
    kafka_oracle: Oracle, quick_path: Path, first: int
) -> None:
    """Kafka may roll before it refuses a batch, so the files may differ; the records are equal."""
    for seed in range(first, first + SEEDS_PER_TEST):
        folder = quick_path / str(seed)
        script = client_script(seed, folder, stubborn=True)
        theirs, ours = live_twice(kafka_oracle, script, folder)
        assert batches_in(ours) == batches_in(theirs)


def copied(offset: int, epoch: int, *, legacy: bool = False, size: int = 10) -> dict[str, object]:
    """Return a step that appends one record as a follower does."""
    records = [NewRecord(key=b"k", value=b"v" * size, timestamp=T0 if offset else T0 - 10_000)]
    if legacy:
        data = build_legacy_set(records * 3, magic=1, codec=Codec.GZIP, base_offset=offset)
    else:
        data = build_batch(records)
        assign_offset(data, 0, offset, epoch)
    append = {"do": "append", "data": bytes(data), "origin": "REPLICATION"}
    return append | {"leader_epoch": EPOCH_LIMIT, "now_ms": T0}


def test_a_copied_wrapper_after_a_gap_begins_a_segment_at_the_log_end(
    kafka_oracle: Oracle, quick_path: Path
) -> None:
    steps = [copied(0, 0), copied(40, 0, legacy=True)]
    script = Script(quick_path, steps, {"segment.ms": "500"}, now_ms=T0)
    theirs, ours = live_twice(kafka_oracle, script, quick_path)
    assert_same_files(theirs, ours)


def test_a_refused_append_leaves_no_leader_epoch_behind(
    kafka_oracle: Oracle, quick_path: Path
) -> None:
    """Kafka stores the leader epoch of an append that it refuses; our log does not."""
    steps = [copied(0, 1), copied(1, 2, size=2_000)]
    script = Script(quick_path, steps, {"internal.segment.bytes": "1000"}, now_ms=T0)
    theirs, ours = live_twice(kafka_oracle, script, quick_path)
    assert kafka_files(theirs)["leader-epoch-checkpoint"] == b"0\n2\n1 0\n2 1\n"
    assert kafka_files(ours)["leader-epoch-checkpoint"] == b"0\n1\n1 0\n"
