"""DumpLogSegments of Kafka's own tools accepts our files, and detects damage in them."""

import random
from dataclasses import replace
from pathlib import Path

import pytest
from tests.peers.ours import run_ours
from tests.peers.scripts import client_script, follower_script
from tests.worlds.kafka.oracle import DUMPED_SUFFIXES, Oracle, Script
from tests.worlds.repetition import rarely

pytestmark = pytest.mark.kafka

SEEDS = [range(15), rarely(range(15, 40))]


def lived(folder: Path, seed: int) -> Script:
    """Create a directory by a seeded script; return the script."""
    make = random.Random(seed).choice((client_script, follower_script))
    script = make(seed, folder / f"{seed}" / "events-0")
    run_ours(script)
    return script


def filled_indexes(directory: Path) -> set[str]:
    """Return the index files that have entries; Kafka's tool does not check empty index files."""
    indexes = [*directory.glob("*.index"), *directory.glob("*.timeindex")]
    return {str(index) for index in indexes if index.stat().st_size}


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_every_file_is_accepted(kafka_oracle: Oracle, quick_path: Path, seeds: range) -> None:
    for seed in seeds:
        script = lived(quick_path, seed)
        found = kafka_oracle.check_directory(script.directory)
        assert found.damage == (), f"seed {seed}"
        files = {str(f) for f in script.directory.iterdir() if f.suffix in DUMPED_SUFFIXES}
        assert found.dumped == files
        assert found.passed >= filled_indexes(script.directory)


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_files_after_our_recovery_are_accepted(
    kafka_oracle: Oracle, quick_path: Path, seeds: range
) -> None:
    for seed in seeds:
        script = lived(quick_path, seed)
        for index in script.directory.glob("*index"):
            index.unlink()
        last = max(script.directory.glob("*.log"))
        last.write_bytes(last.read_bytes()[:-1] + b"\0" * 3)
        run_ours(replace(script, steps=[], clean=False))
        found = kafka_oracle.check_directory(script.directory)
        assert found.damage == (), f"seed {seed}"
        assert found.passed >= filled_indexes(script.directory)


@pytest.mark.parametrize("suffix", [".log", ".index", ".timeindex", ".snapshot"])
def test_a_flipped_bit_is_found(kafka_oracle: Oracle, quick_path: Path, suffix: str) -> None:
    """Without this test, a tool that accepts everything would pass the tests above."""
    script = client_script(0, quick_path / "events-0")
    run_ours(script)
    sizable = [f for f in sorted(script.directory.glob(f"*{suffix}")) if f.stat().st_size > 24]
    content = bytearray(sizable[0].read_bytes())
    content[min(23, len(content) - 1)] ^= 4
    sizable[0].write_bytes(content)
    assert kafka_oracle.check_directory(script.directory).damage
