"""What is said of a worker's Python that lacks something, and where its kernels are kept."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.errors import MissingDependency
from tidelog.spark import workers

# Prints how many functions were compiled: to make ready, and by a read afterwards.
COUNT = """
import json, sys
from numba.core import event

class Listener(event.Listener):
    count = 0

    def on_start(self, _event):
        Listener.count += 1

    def on_end(self, _event):
        pass

event.register("numba:compile", Listener())
from tidelog.spark.workers import make_ready

make_ready()
make_ready(to_write=True)
ready = Listener.count
from tidelog import scan

split = scan.plan(sys.argv[1])
rows = scan.to_table(split).num_rows
print(json.dumps([ready, Listener.count - ready, rows]))
"""


@pytest.fixture
def unready() -> Iterator[None]:
    workers.check_packages.cache_clear()
    yield
    workers.check_packages.cache_clear()


def test_a_missing_package_is_named(unready: None, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    without = lambda name: None if name == "numba" else find(name)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(MissingDependency, match=r"has no numba: set spark\.pyspark") as caught:
        list(workers.in_worker(lambda: iter(())))
    assert sys.executable in str(caught.value)


def test_a_module_that_fails_later_is_named() -> None:
    with pytest.raises(MissingDependency, match="has no obstore"), workers.worker_errors():
        raise ModuleNotFoundError("No module named 'obstore'", name="obstore")


class TestCacheFolder:
    @pytest.fixture(autouse=True)
    def nothing_is_writable(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv(workers.CACHE_VARIABLE, raising=False)
        monkeypatch.setattr("os.access", lambda path, mode: False)
        monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))

    def test_the_one_that_was_chosen(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv(workers.CACHE_VARIABLE, "/elsewhere")
        assert workers.choose_cache(tmp_path) == Path("/elsewhere")

    def test_one_of_the_machine_where_no_other_will_do(self, tmp_path: Path) -> None:
        found = workers.choose_cache(tmp_path)
        assert found == tmp_path / f"tidelog-numba-{os.getuid()}"
        assert os.environ.pop(workers.CACHE_VARIABLE) == str(found)
        assert found.stat().st_mode & 0o777 == 0o700

    def test_never_one_that_others_can_write_to(self, tmp_path: Path) -> None:
        folder = tmp_path / f"tidelog-numba-{os.getuid()}"
        folder.mkdir()
        folder.chmod(0o777)
        assert workers.choose_cache(tmp_path) is None
        folder.rmdir()
        folder.symlink_to(tmp_path)
        assert workers.choose_cache(tmp_path) is None
        assert workers.CACHE_VARIABLE not in os.environ


def test_only_the_first_is_alone(tmp_path: Path) -> None:
    for expected in (True, False):
        with workers._alone(tmp_path / "new", "read") as is_first:
            assert is_first == expected
    with workers._alone(tmp_path / "new", "write") as is_first:
        assert is_first


def test_who_fails_is_not_first_for_ever(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), workers._alone(tmp_path, "read"):
        raise ZeroDivisionError
    with workers._alone(tmp_path, "read") as is_first:
        assert is_first


def test_a_folder_that_can_not_be_made_stops_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with workers._alone(tmp_path / "file" / "folder", "read") as is_first:
        assert not is_first


@pytest.mark.slow
def test_processes_of_a_machine_compile_once(tmp_path: Path) -> None:
    from tests.unit.scan.logs import make_log_dir

    make_log_dir(str(tmp_path / "logs"), 3)
    environment = os.environ | {workers.CACHE_VARIABLE: str(tmp_path / "kernels")}
    command = [sys.executable, "-c", COUNT, str(tmp_path / "logs")]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(3)]
    first = sorted(json.loads(process.communicate()[0]) for process in running)
    assert [ready for ready, _, _ in first[:2]] == [0, 0]
    assert first[2][0] > 0
    later = json.loads(subprocess.check_output(command, env=environment))
    assert later[:2] == [0, 0]
    assert [read for _, read, _ in first] == [0, 0, 0]
    assert len({rows for _, _, rows in [*first, later]}) == 1
