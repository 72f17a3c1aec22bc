"""The README's examples run in order on the demo's log and print the output that follows them."""

from pathlib import Path

import pytest
from examples.demo import flights as load
from examples.demo.flights import flights_of, read_source, source_path
from tests.worlds.spark.settings import QUICK_JVM
from tools import clocks_plot
from tools.readme_outputs import README, Example, examples, run, with_outputs, without_ends

LINES_MAX = 150
CHANGES_LINES_MAX = 60
WIDTH_MAX = 80
# The first flights of the year, which include the storm day.
FLIGHTS = 40_000

PYTHON, SHELL, SPARK = examples(README.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with the beginning of the demo's log."""
    folder = tmp_path_factory.mktemp("readme")
    flights = flights_of(read_source(source_path()))
    rows = flights.departed_ms < flights.departed_ms[FLIGHTS]
    chosen = flights.where(rows)
    path = folder / "demo-output" / "log"
    path.parent.mkdir()
    load.load(str(path), chosen, chosen.partitions(load.PARTITIONS), lambda _: None)
    return folder


def test_the_changelog_says_what_users_get_in_few_lines() -> None:
    lines = README.with_name("CHANGELOG.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= CHANGES_LINES_MAX


def test_the_readme_is_short_and_narrow() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= LINES_MAX
    for example in (PYTHON, SHELL, SPARK):
        assert max(map(len, example.output.splitlines())) <= WIDTH_MAX


def test_library(folder: Path) -> None:
    assert run(PYTHON, folder) == PYTHON.output, "run tools/readme_outputs.py"


def test_command_line(folder: Path) -> None:
    assert run(SHELL, folder) == SHELL.output, "run tools/readme_outputs.py"


@pytest.mark.spark
def test_spark(folder: Path) -> None:
    env = {"JDK_JAVA_OPTIONS": QUICK_JVM}
    assert run(SPARK, folder, env) == SPARK.output, "run tools/readme_outputs.py"


def test_outputs_are_written_below_their_examples() -> None:
    page = "a\n```sh\necho 1\n```\n\n```text\nold\n```\nb\n"
    (example,) = examples(page)
    assert example == Example("sh", "echo 1\n", "old\n")
    assert with_outputs(page, ["1\n"]) == page.replace("old", "1")
    assert without_ends("a  \n\nb\n\n") == "a\n\nb\n"


def test_the_plot_equals_the_scripts_output() -> None:
    flights = flights_of(read_source(source_path()))
    drawn = clocks_plot.draw(flights)
    assert clocks_plot.TARGET.read_text(encoding="utf-8") == drawn, "run tools/clocks_plot.py"
    assert len(drawn) < 10_000
    assert "prefers-color-scheme: dark" in drawn
