"""The committed vectors equal the output of real Kafka today."""

from pathlib import Path

import pytest
from tests.peers.vectors import VECTORS, make_all
from tests.worlds.kafka.oracle import Oracle

pytestmark = pytest.mark.kafka

VECTORS_BYTES_LIMIT = 200_000


def contents(folder: Path) -> dict[str, bytes]:
    """Return the content of every file below `folder`, without Python files and hidden files."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in files
        if file.suffix not in (".py", ".pyc") and not file.name.startswith(".")
    }


def test_the_vectors_equal_kafkas_output(kafka_oracle: Oracle, tmp_path: Path) -> None:
    make_all(kafka_oracle, tmp_path)
    made = contents(tmp_path)
    committed = contents(VECTORS)
    assert sorted(made) == sorted(committed)
    assert [name for name in made if made[name] != committed[name]] == []
    assert sum(map(len, committed.values())) < VECTORS_BYTES_LIMIT
