"""Kernels run even if the cache of compiled code is shared, damaged, stale or not writable."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numba
import pytest

import tidelog
from tidelog.record import kernels

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = """
from tidelog.record.kernels.compiler import kernel


@kernel
def double(number: int) -> int:
    return 2 * number
"""


class Process:
    """A fresh import of a module with one kernel, as in a new process."""

    def __init__(self, path: Path) -> None:
        spec = importlib.util.spec_from_file_location("some_kernels", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        self.double: Callable[[int], int] = module.double
        self._stats: Callable[[], tuple[int, int]] = lambda: (
            sum(module.double.stats.cache_hits.values()),
            sum(module.double.stats.cache_misses.values()),
        )

    def hits_and_misses(self) -> tuple[int, int]:
        """Return how often compiled code was loaded, and how often it was compiled."""
        return self._stats()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Create a module with one kernel."""
    path = tmp_path / "code" / "some_kernels.py"
    path.parent.mkdir()
    path.write_text(SOURCE)
    return path


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set numba's cache directory to a new folder; return the folder."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(folder))
    return folder


def test_the_second_process_loads_the_code_compiled_by_the_first(source: Path, cache: Path) -> None:
    first, second = Process(source), Process(source)
    assert first.double(3) == second.double(3) == 6
    assert first.hits_and_misses() == (0, 1)
    assert second.hits_and_misses() == (1, 0)
    assert list(cache.rglob("*.nbi"))
    assert not list(source.parent.rglob("*.nbi"))


ASKED = """
import some_kernels
found = some_kernels.double(3), some_kernels.double.stats
print(found[0], sum(found[1].cache_hits.values()), sum(found[1].cache_misses.values()))
"""


def test_another_state_of_the_package_is_not_loaded(source: Path, tmp_path: Path) -> None:
    """Kernels contain compiled helpers, so a changed helper requires a new compilation."""
    package = Path(tidelog.__file__).parent
    installed = tmp_path / "installed"
    shutil.copytree(package, installed / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    where = {
        "PYTHONPATH": os.pathsep.join((str(installed), str(source.parent))),
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
    }

    def ask() -> str:
        """Return the kernel's result, and how often code was loaded and compiled."""
        command = (sys.executable, "-c", ASKED)
        return subprocess.check_output(command, text=True, env=os.environ | where).strip()

    assert [ask(), ask()] == ["6 0 1", "6 1 0"]
    changed = Path(kernels.__file__).relative_to(package.parent)
    with (installed / changed).open("a") as file:
        file.write("# an upgrade\n")
    assert ask() == "6 0 1"


@pytest.mark.parametrize("suffix", ["*.nbi", "*.nbc"])
@pytest.mark.parametrize(
    "content", [b"", b"not a pickle", b"\x80\x04"], ids=["empty", "text", "cut"]
)
def test_a_damaged_cache_file_costs_a_compilation(
    source: Path, cache: Path, suffix: str, content: bytes
) -> None:
    Process(source).double(3)
    for file in cache.rglob(suffix):
        file.write_bytes(content)
    survivor, next_one = Process(source), Process(source)
    assert survivor.double(3) == next_one.double(3) == 6
    assert survivor.hits_and_misses() == (0, 1)
    assert next_one.hits_and_misses() == (1, 0)


def test_a_cache_that_can_no_longer_be_written_costs_a_compilation(
    source: Path, cache: Path
) -> None:
    process = Process(source)
    for folder in cache.iterdir():
        folder.rmdir()
    cache.rmdir()
    cache.write_text("a file where the folder was")
    assert process.double(3) == 6


def test_without_any_folder_kernels_are_compiled_in_each_process(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_LOCATOR_CLASSES", "InTreeCacheLocator")
    (source.parent / "__pycache__").write_text("a file where the folder would be")
    process = Process(source)
    assert process.double(3) == 6
