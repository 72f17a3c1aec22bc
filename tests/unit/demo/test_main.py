"""The demo's folder, its output on the terminal, and a complete run."""

import io
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from examples.demo import questions
from examples.demo.main import prepare
from examples.demo.questions import Checks, Crossing
from examples.demo.story import Printer, three_sentences
from rich.console import Console
from tests.worlds.kafka.oracle import Oracle

from tidelog.errors import InvalidRequest
from tidelog.record.kernels.compiler import is_cached
from tidelog.record.kernels.key_map import map_batches


def test_a_second_run_starts_afresh(tmp_path: Path) -> None:
    out = tmp_path / "out"
    prepare(out)
    (out / "log").mkdir()
    (out / "log" / "old").touch()
    (out / "report.html").touch()
    prepare(out)
    assert [path.name for path in out.iterdir()] == [".tidelog-demo"]


def test_a_folder_with_foreign_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "precious").touch()
    with pytest.raises(InvalidRequest, match="another --out"):
        prepare(tmp_path)
    assert (tmp_path / "log" / "precious").exists()


def test_the_terminal_shows_steps_a_plot_checks_and_next_commands() -> None:
    stream = io.StringIO()
    printer = Printer(Console(file=stream, width=100))
    with printer.bar("Loading", 10) as advance:
        advance(10)
    with printer.step("Looking"):
        pass
    day = pd.DataFrame(
        {
            "hour": [5, 5, 16],
            "origin": ["EWR", "JFK", "EWR"],
            "departures": [60, 40, 0],
            "cancelled": [0, 0, 1],
        }
    )
    printer.day("The day", day)
    checks = Checks()
    checks.equal("rows", 3, 3)
    printer.checked(checks)
    checks.equal("hours", 3, 4)
    printer.checked(checks)
    printer.end(Path("out"), 41.6)
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    steps = [re.fullmatch(r"(\w+) +\d+\.\d s", line.strip()) for line in lines]
    assert [step[1] for step in steps if step] == ["Loading", "Looking"]
    assert f"   5:00  {'█' * 50} 100 left" in lines
    assert "  16:00  ░ 1 canceled" in lines
    assert "checked: 1 of 1 figures equal those of the source file" in lines
    assert "checked: 1 of 2 figures equal those of the source file" in lines
    assert "  hours: DIFFERENT: the log says 3, the source 4" in lines
    done = lines.index("Done in 42 s. Now try:")
    assert lines[done + 1].endswith("open out/report.html")
    assert len(lines[done:]) == 4


def test_sentences_have_the_figures_of_the_day() -> None:
    day = pd.DataFrame(
        {
            "hour": [5, 6, 9],
            "origin": ["EWR", "LGA", "LGA"],
            "departures": [2, 3, 1],
            "cancelled": [0, 1, 4],
            "late_p90": [4.0, 90.0, 175.4],
        }
    )
    first, second, third = three_sentences(day, Crossing(12, 5), 0.00358)
    assert "two times" in first
    assert "12 flights" in second
    assert "5 left before noon" in second
    assert "11 flights" in third
    assert "0.36%" in third


def test_native_code_is_compiled_by_a_process_only_if_it_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "is_cached", lambda _kernel: True)
    assert questions.start_compiler(tmp_path) is None
    questions.stop_compiler(None)
    monkeypatch.setattr(questions, "is_cached", lambda _kernel: False)
    compiler = questions.start_compiler(tmp_path / "native")
    assert compiler is not None
    questions.stop_compiler(compiler)
    assert compiler.returncode is not None


def test_the_step_that_compiles_native_code_fills_the_cache(tmp_path: Path) -> None:
    questions.compile_code(tmp_path / "native")
    assert is_cached(map_batches)


@pytest.fixture(scope="module")
def demo_output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the whole demo: load a year, replay a day, check all figures."""
    out = tmp_path_factory.mktemp("demo") / "out"
    command = [sys.executable, "-m", "examples.demo", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    (out / "said.txt").write_text(done.stdout)
    return out


@pytest.mark.slow
@pytest.mark.spark
def test_every_figure_of_the_demo_is_equal_to_the_sources(demo_output: Path) -> None:
    said = (demo_output / "said.txt").read_text()
    assert "DIFFERENT" not in said
    (count,) = re.findall(r"checked: (\d+) of \1 figures equal", said)
    assert int(count) == 11
    assert len(said.splitlines()) <= 50
    assert (demo_output / "report.html").stat().st_size > 10_000
    assert not (demo_output / "spark").exists()


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.kafka
def test_apache_kafka_accepts_every_file_of_the_demo(
    demo_output: Path, kafka_oracle: Oracle
) -> None:
    """DumpLogSegments of Apache Kafka checks all records and index entries."""
    for partition in sorted((demo_output / "log").glob("flights-*")):
        found = kafka_oracle.check_directory(partition)
        assert found.accepted, found.damage or found.gaps
        assert len(found.dumped) > 30


@pytest.mark.slow
@pytest.mark.spark
def test_our_dump_has_no_findings_in_the_demos_log(demo_output: Path) -> None:
    command = [sys.executable, "-m", "tidelog.cli.app", "dump", "-o", "json"]
    command += [str(path) for path in sorted((demo_output / "log").glob("flights-*"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
