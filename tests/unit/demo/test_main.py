"""The demo's folder, its figures on the terminal, and the whole of it."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tests.worlds.kafka.oracle import Oracle

from tidelog.demo.main import prepare
from tidelog.demo.story import Teller
from tidelog.errors import InvalidRequest
from tidelog.report import Table


def test_a_second_run_starts_afresh(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(out)
    (out / "log").mkdir()
    (out / "log" / "old").touch()
    (out / "report.html").touch()
    prepare(out)
    assert [path.name for path in out.iterdir()] == [".tidelog-demo"]


def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "precious").touch()
    with pytest.raises(InvalidRequest, match="another --out"):
        prepare(tmp_path)
    assert (tmp_path / "log" / "precious").exists()


def test_what_is_told_goes_to_one_stream() -> None:
    stream = io.StringIO()
    teller = Teller(Console(file=stream, width=60))
    with teller.bar("Loading", 10) as advance:
        advance(10)
    with teller.step("Looking"):
        pass
    teller.table("Sizes", Table(["file", "bytes"], [["log", "1,000"], ["index", "5"]]))
    teller.checked("checked: rows: equal")
    teller.end(Path("out"), 1.0)
    said = stream.getvalue()
    assert "Looking: 0.0 s" in said
    assert "│ index │     5 │" in said
    assert "out/report.html" in said
    assert teller.all_checked == ["rows: equal"]


@pytest.fixture(scope="module")
def demo_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the whole demo leaves: a year loaded, a day replayed, every figure checked."""
    out = tmp_path_factory.mktemp("demo") / "out"
    command = [sys.executable, "-m", "tidelog.demo", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    (out / "said.txt").write_text(done.stdout)
    return out


@pytest.mark.slow
@pytest.mark.spark
def test_every_figure_of_the_demo_is_equal_to_the_sources(demo_output: Path) -> None:
    said = (demo_output / "said.txt").read_text()
    assert "DIFFERENT" not in said
    assert said.count(": equal") >= 7
    assert (demo_output / "report.html").stat().st_size > 10_000
    assert not (demo_output / "spark").exists()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.kafka
def test_apache_kafka_accepts_every_file_of_the_demo(
    demo_output: Path, kafka_oracle: Oracle
) -> None:
    """DumpLogSegments: every record of every log, every index entry, its own sanity check."""
    for partition in sorted((demo_output / "log").glob("flights-*")):
        found = kafka_oracle.check_directory(partition)
        assert found.accepted, found.damage or found.gaps
        assert len(found.dumped) > 30


@pytest.mark.slow
@pytest.mark.spark
def test_our_own_dump_finds_nothing_in_the_demos_log(demo_output: Path) -> None:
    command = [sys.executable, "-m", "tidelog.cli.app", "dump", "-o", "json"]
    command += [str(path) for path in sorted((demo_output / "log").glob("flights-*"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
