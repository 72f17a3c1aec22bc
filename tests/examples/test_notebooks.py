"""The notebooks in examples/ are stored with the outputs of a run."""

from pathlib import Path

import pytest
from tools.notebooks import FOLDER, NAMES, read, run, text_of

SIZE_MAX = 40_000


@pytest.fixture(autouse=True)
def of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put settings and temporary files of a run into the test's folder."""
    for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "TMPDIR"):
        monkeypatch.setenv(name, str(tmp_path))


def test_all_are_known() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_stored_with_outputs_and_without_paths_or_times(name: str) -> None:
    book = read(name)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert sum(bool(cell.outputs) for cell in code) > len(code) // 2
    assert not any("execution" in cell.metadata for cell in code)
    text = text_of(book)
    assert "/tmp" not in text
    assert "/home" not in text
    assert len(text) < SIZE_MAX


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_run_has_the_stored_outputs(name: str, tmp_path: Path) -> None:
    again = run(name, tmp_path)
    for stored, cell in zip(read(name).cells, again.cells, strict=True):
        assert stored.get("outputs") == cell.get("outputs"), "run tools/notebooks.py"
    shown = text_of(again)
    if name == "time_travel":
        assert "due in that hour: 47, taken by the log: 40" in shown
        assert "appendTimestamp (UTC)" in shown
    else:
        assert "to lose at most 0.0%: wait" in shown
