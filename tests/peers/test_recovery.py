"""After a hard stop both leave the same files: what is cut, indexes built anew, snapshots."""

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.kafka_oracle import Oracle, Script
from tests.peers.ours import kafka_files, run_ours
from tests.peers.samples import T0
from tests.peers.scripts import client_script, follower_script

pytestmark = pytest.mark.kafka

SEEDS_PER_TEST = 15
SEEDS = range(0, 4 * SEEDS_PER_TEST, SEEDS_PER_TEST)
DAMAGES = ("none", "no indexes", "cut", "flip", "garbage", "zeros", "torn index")


def hard_stop(rng: random.Random, directory: Path, damage: str) -> None:
    """What a power cut or a broken disk may have left in one of the segments."""
    log = rng.choice(sorted(directory.glob("*.log")))
    size = log.stat().st_size
    if damage == "no indexes":
        for index in [*directory.glob("*index"), *directory.glob("*.snapshot")]:
            index.unlink()
    elif damage == "cut":
        with log.open("r+b") as file:
            file.truncate(rng.randrange(size + 1))
    elif damage == "flip" and size:
        content = bytearray(log.read_bytes())
        content[rng.randrange(size)] ^= 1 << rng.randrange(8)
        log.write_bytes(content)
    elif damage == "garbage":
        with log.open("ab") as file:
            file.write(rng.randbytes(rng.randrange(1, 200)))
    elif damage == "zeros":
        with log.open("ab") as file:
            file.write(bytes(rng.randrange(1, 5_000)))
    elif damage == "torn index":
        index = rng.choice(sorted(directory.glob("*index")))
        index.write_bytes(rng.randbytes(rng.randrange(100)))


def recover_twice(oracle: Oracle, rng: random.Random, crashed: Script) -> tuple[Script, Script]:
    """Copy a crashed directory for each side; the scripts that open them."""
    bases = [int(log.stem) for log in sorted(crashed.directory.glob("*.log"))]
    point = rng.choice((0, 0, *bases))
    asked = [{"do": "state"}]
    opened = replace(crashed, steps=asked, clean=False, recovery_point=point, end="close")
    scripts = []
    for side in ("kafka", "ours"):
        copy = crashed.directory.parent / side / crashed.directory.name
        shutil.copytree(crashed.directory, copy)
        scripts.append(replace(opened, directory=copy, now_ms=T0 + 10**6))
    return scripts[0], scripts[1]


def offsets(answer: object) -> tuple[object, object, object]:
    """Start, end and last stable offset."""
    assert isinstance(answer, dict)
    names = ("log_start_offset", "log_end_offset", "last_stable_offset")
    first, second, third = (answer[name] for name in names)
    return first, second, third


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("first", SEEDS)
def test_recovery_leaves_the_same_files(
    kafka_oracle: Oracle, quick_path: Path, damage: str, first: int
) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        rng = random.Random(f"{damage} {seed}")
        make = rng.choice((client_script, follower_script))
        crashed = make(seed, quick_path / str(seed) / "events-0", steps=20)
        crashed = replace(crashed, end="crash")
        kafka_oracle.run(crashed)
        hard_stop(rng, crashed.directory, damage)
        theirs, ours = recover_twice(kafka_oracle, rng, crashed)
        told = offsets(kafka_oracle.run_well(theirs)[0])
        assert offsets(run_ours(ours)[0]) == told, f"seed {seed}"
        expected, made = kafka_files(theirs.directory), kafka_files(ours.directory)
        assert sorted(made) == sorted(expected), f"seed {seed}"
        assert [n for n in expected if made[n] != expected[n]] == [], f"seed {seed}"
