"""The folder of compiled kernels, and the lock by which one process compiles while others wait."""

import os
from pathlib import Path

import pytest

from tidelog.storage import kernel_cache


class TestCacheFolder:
    @pytest.fixture(autouse=True)
    def nothing_is_writable(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv(kernel_cache.CACHE_VARIABLE, raising=False)
        monkeypatch.setattr("os.access", lambda path, mode: False)
        monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))

    def test_the_configured_folder_is_used(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv(kernel_cache.CACHE_VARIABLE, "/elsewhere")
        assert kernel_cache.choose_cache(tmp_path) == Path("/elsewhere")

    def test_a_folder_of_the_machine_is_used_if_no_other_is_possible(self, tmp_path: Path) -> None:
        found = kernel_cache.choose_cache(tmp_path)
        assert found == tmp_path / f"tidelog-numba-{os.getuid()}"
        assert os.environ.pop(kernel_cache.CACHE_VARIABLE) == str(found)
        assert found.stat().st_mode & 0o777 == 0o700

    def test_a_folder_that_others_can_write_to_is_never_used(self, tmp_path: Path) -> None:
        folder = tmp_path / f"tidelog-numba-{os.getuid()}"
        folder.mkdir()
        folder.chmod(0o777)
        assert kernel_cache.choose_cache(tmp_path) is None
        folder.rmdir()
        folder.symlink_to(tmp_path)
        assert kernel_cache.choose_cache(tmp_path) is None
        assert kernel_cache.CACHE_VARIABLE not in os.environ


def test_only_the_first_use_of_a_key_is_reported_as_first(tmp_path: Path) -> None:
    for expected in (True, False):
        with kernel_cache.alone(tmp_path / "new", "read") as is_first:
            assert is_first == expected
    with kernel_cache.alone(tmp_path / "new", "write") as is_first:
        assert is_first


def test_a_failed_first_process_leaves_the_next_one_first(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), kernel_cache.alone(tmp_path, "read"):
        raise ZeroDivisionError
    with kernel_cache.alone(tmp_path, "read") as is_first:
        assert is_first


def test_a_folder_that_cannot_be_created_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with kernel_cache.alone(tmp_path / "file" / "folder", "read") as is_first:
        assert not is_first
