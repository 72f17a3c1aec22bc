"""`import tidelog` loads few modules, and the core runs without the extras."""

import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from tests.tidy.checks import ROOT

import tidelog

HEAVY = {
    "click",
    "confluent_kafka",
    "llvmlite",
    "numba",
    "numpy",
    "pandas",
    "pyarrow",
    "pyspark",
    "rich",
}
IMPORT_CPU_MS_MAX = 100

MODULES_LOADED = "import sys, tidelog; print(*sys.modules)"
CPU_MS = """
import time
start = time.process_time()
import tidelog
print((time.process_time() - start) * 1000)
"""

# Imports every module as if the extras were not installed, except the modules given as arguments,
# which may need extras.
CORE_WITHOUT_EXTRAS = """
import importlib, pkgutil, sys
for name in ("confluent_kafka", "numba", "numpy", "pandas", "pyarrow", "pyspark"):
    sys.modules[name] = None
import tidelog
for found in pkgutil.walk_packages(tidelog.__path__, "tidelog."):
    if not found.name.startswith(tuple(sys.argv[1:])) and not found.name.endswith("__main__"):
        importlib.import_module(found.name)
        print(found.name)
"""

# Forks a process for each command; the process prints the command's `--help` and the loaded
# modules.
HELP_MODULES = """
import os, sys
from tidelog.cli.app import COMMANDS, JOBS, app, spark
for group, names in ((app, COMMANDS), (spark, JOBS)):
    for name in names:
        if os.fork() == 0:
            group.commands[name].imported()
            print(group.name, name, *sys.modules, flush=True)
            os._exit(0)
        os.wait()
"""
HELP_MODULES_MAX = 55
# Commands whose help loads more modules than the help of other commands, because it lists types of
# files or records.
HELP_READS = {"tidelog dump", "tidelog read"}
# Pattern of the modules for a command's work, which are imported when the command runs.
WORK = re.compile(
    r"tidelog\.(server|standby|scan|storage\.(checks|compaction|tier\w*)|directory)\b"
)

READING = """
import sys, tidelog
with tidelog.open(sys.argv[1]) as log:
    [*log.records("flights")]
print(*sys.modules)
"""
BROKER = """
import sys, tidelog
with tidelog.broker():
    print(*sys.modules)
"""
# Modules that only compressed batches need.
CODECS = {"cramjam", "lz4.frame", "zstandard"}
JOBS = "import sys, tidelog.jobs.audit.job; print(*sys.modules)"
CLASSIC_GROUPS = "import sys, tidelog.server.groups.coordinator; print(*sys.modules)"
OTHER_GROUPS = {
    "tidelog.protocol.messages.modern_group_records",
    "tidelog.server.groups.assignors",
    "tidelog.server.groups.classic_in_consumer",
    "tidelog.server.groups.consumer_heartbeat",
    "tidelog.server.groups.group_updates",
    "tidelog.server.groups.migration",
    "tidelog.server.groups.modern_records",
    "tidelog.server.groups.share_heartbeat",
    "tidelog.server.groups.topic_regexes",
}


def may_need_extras() -> list[str]:
    """Return modules that may import extras at their top, according to pyproject.toml (TID253)."""
    settings = tomllib.loads(Path(ROOT, "pyproject.toml").read_text())
    exempt = settings["tool"]["ruff"]["lint"]["per-file-ignores"].items()
    patterns = [pattern for pattern, rules in exempt if "TID253" in rules]
    paths = [re.sub(r"(\.py|/?\*+)+$", "", pattern) for pattern in patterns]
    return [path.removeprefix("src/").replace("/", ".") for path in paths if path[:4] == "src/"]


def run(program: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "error", "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_reads_no_heavy_module() -> None:
    loaded = {name.partition(".")[0] for name in run(MODULES_LOADED).split()}
    assert loaded & HEAVY == set()


def test_reading_loads_no_module_of_writing_stores_and_brokers(tmp_path: Path) -> None:
    with tidelog.open(str(tmp_path), writable=True) as log:
        log.create_topic("flights")
        log.append("flights", [tidelog.NewRecord(value=b"v")])
    loaded = set(run(READING, str(tmp_path)).split())
    assert "tidelog.storage.log.log_reader" in loaded
    needless = {"tidelog.config.broker", "tidelog.objects", "tidelog.storage.log.log"}
    assert loaded & needless == set()


def test_the_help_of_a_command_does_not_load_its_implementation() -> None:
    lines = [line.split(" ") for line in run(HELP_MODULES).splitlines()]
    loaded = {f"{group} {name}": set(modules) for group, name, *modules in lines}
    assert {"tidelog serve", "tidelog tier", "spark mirror"} <= set(loaded)
    for command, modules in loaded.items():
        assert {name.partition(".")[0] for name in modules} & (HEAVY - {"click"}) == set(), command
        if command not in HELP_READS:
            ours = {name for name in modules if name.startswith("tidelog.")}
            assert len(ours) <= HELP_MODULES_MAX, command
            assert not [name for name in ours if WORK.match(name)], command


def test_import_takes_little_time() -> None:
    """The best CPU time of five runs counts, so that a busy machine hardly affects the result."""
    assert min(float(run(CPU_MS)) for _ in range(5)) < IMPORT_CPU_MS_MAX


def test_core_imports_without_the_extras() -> None:
    assert "tidelog.record.kernels" in may_need_extras()
    seen = run(CORE_WITHOUT_EXTRAS, *may_need_extras()).split()
    assert {
        "tidelog.env",
        "tidelog.record.batch",
        "tidelog.storage.segment.time_index",
    } <= set(seen)


def test_every_public_name_exists_and_has_a_docstring() -> None:
    assert tidelog.__all__ == sorted(tidelog.__all__)
    for name in tidelog.__all__:
        assert (getattr(tidelog, name).__doc__ or "").strip(), f"tidelog.{name} has no docstring"


def test_subpackages_that_the_documentation_names_load_at_their_first_use() -> None:
    code = "import tidelog; print(tidelog.spark.mirror.__name__, len(tidelog.scan.ALL_COLUMNS) > 1)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "mirror True\n"


def test_unknown_name_is_an_attribute_error() -> None:
    name = "no_such_name"
    with pytest.raises(AttributeError, match=name):
        getattr(tidelog, name)


def test_jobs_load_no_spark_before_they_run() -> None:
    loaded = set(run(JOBS).split())
    assert {name for name in loaded if name.partition(".")[0] == "pyspark"} == set()


def test_classic_groups_load_no_modules_of_other_protocols() -> None:
    loaded = set(run(CLASSIC_GROUPS).split())
    assert not OTHER_GROUPS & loaded
    for name in OTHER_GROUPS:
        assert find_spec(name) is not None, name


def test_a_broker_starts_without_modules_of_plots_and_time_texts() -> None:
    pictures = {"tidelog.html_cells", "tidelog.timespec", "zoneinfo"}
    assert not pictures & set(run(BROKER).split())
    for name in pictures:
        assert find_spec(name) is not None, name


def test_a_broker_starts_without_the_libraries_of_codecs() -> None:
    assert not CODECS & set(run(BROKER).split())
    for name in CODECS:
        assert find_spec(name) is not None, name


def test_commands_do_not_distinguish_directories_from_clusters() -> None:
    """Commands call methods that directories and clusters share, and don't check the class."""
    asked = re.compile(r"isinstance\([^()]*\b(Directory|RemoteDirectory|TopicInfo|RemoteTopic)\b")
    modules = (ROOT / "src" / "tidelog" / "cli").rglob("*.py")
    assert [path.name for path in modules if asked.search(path.read_text())] == []


def test_classes_of_the_source_are_compiled_at_their_first_use() -> None:
    standard = re.compile(r"(?m)^\s*(from dataclasses import .*\bdataclass\b|@dataclasses\.)")
    modules = (ROOT / "src").rglob("*.py")
    found = [path.name for path in modules if standard.search(path.read_text())]
    assert found == ["lazy_dataclass.py"]
