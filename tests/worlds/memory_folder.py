"""A folder in memory, if the machine has enough of it for files."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

MEMORY: Final = Path("/dev/shm")
# Containers often have only 64 MB there, shared by all processes.
ROOM_BYTES: Final = 1 << 30


def memory_folder(place: Path = MEMORY) -> Path | None:
    """The folder for files in memory, None where there is none or little room in it."""
    has_room = place.is_dir() and shutil.disk_usage(place).free >= ROOM_BYTES
    return place if has_room else None


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """An empty folder in memory where the machine has one: many rolls, many syncs.

    For tests in which nothing depends on what a sync does.
    """
    memory = memory_folder()
    if memory is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="tidelog-") as folder:
        yield Path(folder)
