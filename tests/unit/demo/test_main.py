"""The demo's folder, its figures on the terminal, and the whole of it."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tidelog.demo.main import prepare
from tidelog.demo.report import Table
from tidelog.demo.story import Teller
from tidelog.errors import InvalidRequest


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


@pytest.mark.slow
@pytest.mark.spark
def test_the_whole_demo(tmp_path: Path) -> None:
    """Loads a year, replays a day, and finds every figure equal to the source's."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "tidelog.demo", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "DIFFERENT" not in done.stdout
    assert done.stdout.count(": equal") >= 7
    assert (out / "report.html").stat().st_size > 10_000
    assert not (out / "spark").exists()
