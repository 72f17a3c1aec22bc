"""Runs the notebooks in examples/ and stores them with their outputs.

`PYTHONPATH=src:. python tools/notebooks.py`; takes some seconds for each notebook. Needs
`tidelog[dev]`. Outputs are the same in each run: the path of the temporary folder is masked, and
the times of cells are not stored.
"""

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Final

import nbformat
from nbclient import NotebookClient

FOLDER: Final = Path(__file__).parent.parent / "examples"
NAMES: Final = ("late_data", "time_travel")
# Timeout of a cell, in seconds. On an idle machine, a cell takes a few seconds.
CELL_TIMEOUT_S: Final = 240
# Pattern of the path of a notebook's temporary folder, and the path's replacement in outputs.
_PATH: Final = re.compile(r"[^\s<>'\"()]*/flights-[a-z0-9_]{8}")
_MASK: Final = "flights"


def read(name: str) -> "nbformat.NotebookNode":
    """Return a stored notebook."""
    book: nbformat.NotebookNode = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)  # type: ignore[no-untyped-call] # nbformat has no hint
    return book


def run(name: str, folder: Path) -> "nbformat.NotebookNode":
    """Run a notebook in its own process, and return it with the outputs to store.

    Args:
        name: Name of the notebook's file without the suffix.
        folder: Working directory of the process.

    Raises:
        CellExecutionError: A cell failed.
    """
    book = read(name)
    client = NotebookClient(
        book,
        timeout=CELL_TIMEOUT_S,
        startup_timeout=CELL_TIMEOUT_S,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    # Jupyter runs a notebook in its folder, from which the notebook imports `demo`. Progress bars
    # are switched off, because their output depends on the speed.
    path = os.pathsep.join(filter(None, (str(FOLDER), os.environ.get("PYTHONPATH"))))
    client.execute(env={**os.environ, "PYTHONPATH": path, "TIDELOG_PROGRESS": "0"})
    book.metadata.pop("widgets", None)
    book.metadata.language_info = {"name": "python"}
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs = [_stored(output) for output in cell.outputs]
    return book


def _stored(output: "nbformat.NotebookNode") -> "nbformat.NotebookNode":
    """Mask paths in an output."""
    if "text" in output:
        output.text = _PATH.sub(_MASK, output.text)
    for kind, content in output.get("data", {}).items():
        output.data[kind] = _PATH.sub(_MASK, content) if isinstance(content, str) else content
    return output


def text_of(book: "nbformat.NotebookNode") -> str:
    """Return the text of a notebook's file."""
    text: str = nbformat.writes(book)  # type: ignore[no-untyped-call] # nbformat has no hint
    return f"{text.rstrip()}\n"


if __name__ == "__main__":
    for each in sys.argv[1:] or NAMES:
        with tempfile.TemporaryDirectory() as place:
            made = text_of(run(each, Path(place)))
        (FOLDER / f"{each}.ipynb").write_text(made, encoding="utf-8")
