"""The README's code runs as it stands, block after block, in an empty directory."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.worlds.spark.settings import QUICK_JVM

README = Path(__file__).parents[2] / "README.md"
TOUR_LINES_MAX = 20


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README.read_text(), re.MULTILINE | re.DOTALL)


def run(*command: str, cwd: Path) -> str:
    beside = str(Path(sys.executable).parent)
    path = f"{beside}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {
        "PATH": path,
        "PYSPARK_PYTHON": sys.executable,
        "COLUMNS": "200",
        "JDK_JAVA_OPTIONS": QUICK_JVM,
    }
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture
def library_output(tmp_path: Path) -> str:
    """What the library's block prints; its directory is there for the blocks that follow."""
    return run(sys.executable, "-W", "error", "-c", blocks("python")[0], cwd=tmp_path)


def test_tour_is_short() -> None:
    code = [line for block in blocks("python") + blocks("sh") for line in block.splitlines()]
    assert len([line for line in code if line]) <= TOUR_LINES_MAX
    assert (len(blocks("python")), len(blocks("sh"))) == (2, 1)


def test_library(library_output: str) -> None:
    by_record, by_append = library_output.splitlines()
    assert by_record.count("OffsetAndTimestamp(offset=0, timestamp=1360342800000") == 1
    assert by_append.count("OffsetAndTimestamp(offset=0") == 1
    assert "timestamp=1360342800000" not in by_append, "it was appended now, not in 2013"


@pytest.mark.usefixtures("library_output")
def test_command_line(tmp_path: Path) -> None:
    topics, offsets, records = (
        run("sh", "-c", line, cwd=tmp_path) for line in blocks("sh")[0].splitlines()
    )
    assert "flights" in topics
    assert "1360342800000" in offsets
    assert "N14228" in records
    assert "IAH" in records


@pytest.mark.spark
@pytest.mark.usefixtures("library_output")
def test_spark(tmp_path: Path) -> None:
    shown = run(sys.executable, "-c", blocks("python")[1], cwd=tmp_path)
    assert "2013-02-08" in shown
    assert '{"dest": "IAH"}' in shown
