"""A folder in memory for files of tests, if the machine has enough memory for such files."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

MEMORY: Final = Path("/dev/shm")
# Containers often have only 64 MB of memory for files, shared by all processes.
ROOM_BYTES: Final = 1 << 30


def memory_folder(place: Path = MEMORY) -> Path | None:
    """Return the folder for files in memory, None if there is none or too little space."""
    has_room = place.is_dir() and shutil.disk_usage(place).free >= ROOM_BYTES
    return place if has_room else None


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """Return an empty folder, if possible in memory, where many rolls and syncs are quick.

    It is only for tests that don't test the effect of syncs.
    """
    memory = memory_folder()
    if memory is None:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, prefix="tidelog-") as folder:
        yield Path(folder)
