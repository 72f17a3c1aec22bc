"""Errors for a worker's Python that lacks a package, and the folder of its compiled kernels."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition

from tidelog.errors import InvalidRequest, MissingDependency
from tidelog.spark import workers
from tidelog.spark.tasks import TaskPartition, read_partition
from tidelog.storage.kernel_cache import CACHE_VARIABLE

# Prints the number of functions compiled in the preparation, and by a later read.
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
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "numba" else find(name)
    )
    with pytest.raises(MissingDependency, match=r"lacks numba: set spark\.pyspark") as caught:
        list(workers.in_worker(lambda: iter(())))
    assert sys.executable in str(caught.value)


def test_only_a_planned_partition_is_empty() -> None:
    assert list(read_partition(TaskPartition(None))) == []
    with pytest.raises(AssertionError):
        read_partition(InputPartition(None))


def test_a_module_that_fails_later_is_named() -> None:
    with pytest.raises(MissingDependency, match="lacks obstore"), workers.worker_errors():
        raise ModuleNotFoundError("No module named 'obstore'", name="obstore")


@pytest.mark.slow
def test_processes_of_a_machine_compile_once(tmp_path: Path) -> None:
    from tests.worlds.directories.random_logs import make_log_dir

    make_log_dir(str(tmp_path / "logs"), 3)
    environment = os.environ | {CACHE_VARIABLE: str(tmp_path / "kernels")}
    command = [sys.executable, "-c", COUNT, str(tmp_path / "logs")]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(3)]
    first = sorted(json.loads(process.communicate()[0]) for process in running)
    assert [ready for ready, _, _ in first[:2]] == [0, 0]
    assert first[2][0] > 0
    later = json.loads(subprocess.check_output(command, env=environment))
    assert later[:2] == [0, 0]
    assert [read for _, read, _ in first] == [0, 0, 0]
    assert len({rows for _, _, rows in [*first, later]}) == 1


@pytest.mark.parametrize("is_worker", [True, False])
def test_only_in_a_worker_an_error_of_ours_is_shown_without_its_traceback(
    monkeypatch: pytest.MonkeyPatch, is_worker: bool
) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER" if is_worker else "")
    with pytest.raises(InvalidRequest), workers.hide_traceback():
        raise InvalidRequest("no")
    assert os.environ["SPARK_HIDE_TRACEBACK"] == ("1" if is_worker else "")
