"""The notebooks in examples/: without outputs, they run from top to bottom and say what is so."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "examples"
NAMES = ("late_data", "time_travel")
# Each takes some seconds on a quiet machine.
CELL_TIMEOUT_S = 240


def read(name: str) -> "nbformat.NotebookNode":
    book: nbformat.NotebookNode = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    return book


def outputs(cell: "nbformat.NotebookNode") -> str:
    """All that a cell has shown, as text."""
    shown = [
        one.get("text", "") or one.get("data", {}).get("text/html", "") for one in cell.outputs
    ]
    return "\n".join(shown)


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Run a notebook in a process of its own; what its code cells have shown."""
    monkeypatch.setenv("IPYTHONDIR", str(folder))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    book = read(name)
    client = NotebookClient(
        book,
        timeout=CELL_TIMEOUT_S,
        startup_timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute()
    return [outputs(cell) for cell in book.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("name", NAMES)
def test_stripped_of_outputs(name: str) -> None:
    for cell in read(name).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    assert (FOLDER / f"{name}.ipynb").stat().st_size < 16_000


def test_all_are_known() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NAMES)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_time_travel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "\n".join(run("time_travel", tmp_path, monkeypatch))
    assert "(read only)" in shown
    assert "due in that hour: 47, taken by the log: 40" in shown
    assert "were known at noon" in shown
    assert "to be read of" in shown


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_late_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = "\n".join(run("late_data", tmp_path, monkeypatch))
    assert "to lose at most 0.0%: wait" in shown
    assert "dropped," in shown
