"""Errors for a worker's Python that lacks a package, and the folder of compiled kernels."""

import gc
import importlib.util
import json
import os
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.datasource import InputPartition

import tidelog
from tidelog.errors import InvalidRequest, MissingDependency
from tidelog.spark import workers
from tidelog.spark.tasks import TaskPartition, freeze_garbage, read_partition
from tidelog.storage.kernel_cache import CACHE_VARIABLE

# Prints how many functions the preparation compiles, and how many a later read compiles.
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

# Prepares all kernels, audits a topic, then prints the kernels that were not prepared.
AUDIT = """
import json, sys
from numba.core.dispatcher import Dispatcher
from tidelog import scan
from tidelog.jobs.audit.state import SEED_BYTES, Run, encode_run
from tidelog.jobs.audit.state_files import CHUNKS
from tidelog.jobs.audit.work import ComparePart, ReducePart
from tidelog.scan.split import encode_split
from tidelog.spark.kernel_warmup import RUNS
from tidelog.spark.places import Place
from tidelog.types import IsolationLevel

def compiled():
    return {
        (kernel.__name__, types)
        for name, module in list(sys.modules.items())
        if name.startswith("tidelog.")
        for kernel in vars(module).values()
        if isinstance(kernel, Dispatcher)
        for types in kernel.signatures
    }

RUNS["read"]()
RUNS["digest"]()
prepared = compiled()
logs, folder = sys.argv[1:]
reduce = ReducePart(
    places=(("a", Place(logs)),), folder=folder, seed=bytes(SEED_BYTES), span_ms=1000,
    isolation=IsolationLevel.READ_UNCOMMITTED, rows_max=1 << 11,
)
files = {}
for split in scan.plan(logs).splits:
    run = Run(
        side="a", topic=split.topic, partition=split.partition, start=split.start_offset,
        end=split.end_offset, topic_id=split.topic_id, files=(), rows=0, records=0, unkeyed=0,
        unkeyed_sum=0, span_ms=1000, spans=(), marks=(),
    )
    (text,) = reduce(json.dumps([json.loads(encode_run(run)), encode_split(split)]))
    files.setdefault(split.partition, []).extend(json.loads(text)["files"])
sides = list(files.items())
fields = {"files": [sides, sides], "chunks": [0, CHUNKS], "history": True, "positions": None}
compare = ComparePart(folder=folder, keys_max=1, wants_order=False)
counts, _ = compare(json.dumps(fields | {"behind": []}))
print(json.loads(counts)["a_keys"], sorted(name for name, _ in compiled() - prepared))
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


def test_all_kernels_of_an_audit_are_compiled_beforehand(tmp_path: Path) -> None:
    with tidelog.open(tmp_path / "logs", writable=True) as directory:
        directory.create_topic("t", partitions=2)
        rows = [tidelog.NewRecord(key=b"%d" % number, value=b"v") for number in range(6_000)]
        directory.append("t", rows)
    (tmp_path / "rows").mkdir()
    command = [sys.executable, "-c", AUDIT, str(tmp_path / "logs"), str(tmp_path / "rows")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("6000 []\n", 0), done.stderr


class Cycle:
    """Object that only garbage collection frees."""

    def __init__(self) -> None:
        self.own = self


def test_garbage_is_freed_before_the_other_objects_are_frozen() -> None:
    freeze_garbage.cache_clear()
    cycle = weakref.ref(Cycle())
    try:
        freeze_garbage()
        assert cycle() is None
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()


@pytest.mark.parametrize("is_worker", [True, False])
def test_only_in_a_worker_an_error_of_ours_is_shown_without_its_traceback(
    monkeypatch: pytest.MonkeyPatch, is_worker: bool
) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    monkeypatch.setenv("SPARK_PYTHON_RUNTIME", "PYTHON_WORKER" if is_worker else "")
    with pytest.raises(InvalidRequest), workers.hide_traceback():
        raise InvalidRequest("no")
    assert os.environ["SPARK_HIDE_TRACEBACK"] == ("1" if is_worker else "")
