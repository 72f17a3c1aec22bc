"""Tests put temporary files into a folder in memory if enough memory is free."""

from pathlib import Path

import pytest
from tests.worlds import memory_folder


def test_without_enough_memory_there_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_folder, "ROOM_BYTES", 0)
    assert memory_folder.memory_folder(tmp_path) == tmp_path
    assert memory_folder.memory_folder(tmp_path / "none") is None
    monkeypatch.setattr(memory_folder, "ROOM_BYTES", 1 << 80)
    assert memory_folder.memory_folder(tmp_path) is None
