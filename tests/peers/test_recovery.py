"""After a hard stop Kafka and tidelog recover the same logs, indexes and newest snapshot."""

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.peers.ours import kafka_files, run_ours
from tests.peers.scripts import client_script, follower_script
from tests.worlds.kafka.oracle import Oracle
from tests.worlds.records.samples import T0
from tests.worlds.repetition import rarely

from tidelog.record.batch_walk import walk
from tidelog.record.header import LENGTH_AT, MAGIC_AT
from tidelog.storage.log.leader_epochs import LeaderEpochs

pytestmark = pytest.mark.kafka

SEEDS_PER_TEST = 15
SEEDS = range(0, 4 * SEEDS_PER_TEST, SEEDS_PER_TEST)
DAMAGES = ("none", "no indexes", "cut", "flip", "garbage", "zeros", "torn index")


def hard_stop(rng: random.Random, directory: Path, damage: str, point: int) -> None:
    """Damage files at or after the recovery point, as a power loss or a failing disk does."""
    log = rng.choice(segments_from(directory, point))
    size = log.stat().st_size
    match damage:
        case "no indexes":
            for index in [*directory.glob("*index"), *directory.glob("*.snapshot")]:
                index.unlink()
        case "cut":
            with log.open("r+b") as file:
                file.truncate(rng.randrange(size + 1))
        case "flip" if size:
            flip(rng, log)
        case "garbage":
            with log.open("ab") as file:
                file.write(rng.randbytes(rng.randrange(1, 200)))
        case "zeros":
            with log.open("ab") as file:
                file.write(bytes(rng.randrange(1, 5_000)))
        case "torn index":
            index = log.with_suffix(rng.choice((".index", ".timeindex")))
            index.write_bytes(rng.randbytes(rng.randrange(100)))


def segments_from(directory: Path, point: int) -> list[Path]:
    """Return the log file that contains `point`, and all later log files."""
    logs = sorted(directory.glob("*.log"))
    first = max(number for number, log in enumerate(logs) if int(log.stem) <= point)
    return logs[first:]


def flip(rng: random.Random, log: Path) -> None:
    """Flip one bit of a batch, except in the offset and magic, which no checksum covers.

    A flipped offset may jump so far that Kafka does not open the log. If a flipped magic is above
    2, Kafka's recovery accepts the batch, although Kafka's readers refuse it. tidelog's recovery
    cuts the log there.
    """
    content = bytearray(log.read_bytes())
    batch = rng.choice(list(walk(content)))
    places = [*range(LENGTH_AT, MAGIC_AT), *range(MAGIC_AT + 1, batch.size_bytes)]
    content[batch.at + rng.choice(places)] ^= 1 << rng.randrange(8)
    log.write_bytes(content)


def recover_twice(
    oracle: Oracle, seed: int, damage: str, folder: Path
) -> tuple[Path, Path, list[object]]:
    """Run a script with a hard stop, recover on both sides; return both folders, and the states."""
    rng = random.Random(f"{damage} {seed}")
    make = rng.choice((client_script, follower_script))
    crashed = replace(make(seed, folder / "events-0", steps=20), end="crash")
    oracle.run(crashed)
    bases = [int(log.stem) for log in sorted(crashed.directory.glob("*.log"))]
    # Without any index file, Kafka also rebuilds the indexes of segments below the recovery point.
    point = 0 if damage == "no indexes" else rng.choice((0, *bases))
    hard_stop(rng, crashed.directory, damage, point)
    folders = []
    for side in ("kafka", "ours"):
        copy = folder / side / crashed.directory.name
        shutil.copytree(crashed.directory, copy)
        folders.append(copy)
    asked = [{"do": "state"}]
    opened = replace(crashed, steps=asked, clean=False, recovery_point=point, end="close")
    theirs, ours = (replace(opened, directory=copy, now_ms=T0 + 10**6) for copy in folders)
    states = [offsets(oracle.run_well(theirs)[0]), offsets(run_ours(ours)[0])]
    return folders[0], folders[1], states


def offsets(answer: object) -> object:
    """Return start, end and last stable offset."""
    assert isinstance(answer, dict)
    return tuple(
        answer[name] for name in ("log_start_offset", "log_end_offset", "last_stable_offset")
    )


def recovered_files(directory: Path) -> dict[str, bytes]:
    """Return logs and indexes, and the newest snapshot.

    Two kinds of files are left out. Only Kafka writes empty lists of aborted transactions; only
    tidelog writes a snapshot of an empty log.
    """
    found = kafka_files(directory)
    found.pop(f"{0:020}.snapshot", None)
    snapshots = sorted(name for name in found if name.endswith(".snapshot"))
    kept = {name for name in found if name.endswith(("log", "index"))}
    kept.update(snapshots[-1:])
    return {
        name: content
        for name, content in found.items()
        if name in kept and (content or not name.endswith(".txnindex"))
    }


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("first", [*SEEDS[:2], *map(rarely, SEEDS[2:])])
def test_recovery_leaves_the_same_files(
    kafka_oracle: Oracle, quick_path: Path, damage: str, first: int
) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        folder = quick_path / str(seed)
        theirs, ours, states = recover_twice(kafka_oracle, seed, damage, folder)
        assert states[0] == states[1], f"seed {seed}"
        expected, made = recovered_files(theirs), recovered_files(ours)
        assert sorted(made) == sorted(expected), f"seed {seed}"
        assert [n for n in expected if made[n] != expected[n]] == [], f"seed {seed}"


@pytest.mark.parametrize("damage", DAMAGES)
def test_recovery_keeps_an_epoch_at_the_log_end_so_that_none_is_used_again(
    kafka_oracle: Oracle, quick_path: Path, damage: str
) -> None:
    """Our log may keep an epoch that starts at the log end; all other epochs equal Kafka's."""
    for seed in range(SEEDS_PER_TEST):
        folder = quick_path / str(seed)
        theirs, ours, states = recover_twice(kafka_oracle, seed, damage, folder)
        state = states[1]
        assert isinstance(state, tuple)
        log_end = state[1]
        expected, made = leader_epochs(theirs), leader_epochs(ours)
        assert [e for e in made if e[1] < log_end] == expected, f"seed {seed}"
        assert all(start <= log_end for _, start in made), f"seed {seed}"


def leader_epochs(directory: Path) -> list[tuple[int, int]]:
    """Return (epoch, start offset) of a partition's leader epochs."""
    data = (directory / "leader-epoch-checkpoint").read_bytes()
    return [(e.epoch, e.start_offset) for e in LeaderEpochs.decode(data).entries]
