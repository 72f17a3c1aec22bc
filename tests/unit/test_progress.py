"""Progress of long library calls: when a bar appears, what it shows, and how it is switched off."""

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import nbformat
import pyarrow as pa
import pytest
from nbclient import NotebookClient

import tidelog
from tidelog.amounts import bytes_text
from tidelog.progress import LONG_S, progress, show_progress, with_progress

Shown = list[tuple[str, dict[str, str]]]


class Clock:
    """A clock in seconds that a test advances."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def _default(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("TIDELOG_PROGRESS", raising=False)
    yield
    show_progress(None)


def notebook(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """Simulate the kernel of a notebook; return the list that collects its cell's output."""
    shown: Shown = []

    class Handle:
        def update(self, content: dict[str, str], *, raw: bool) -> None:
            assert raw
            shown.append(("update", content))

    def display(content: dict[str, str], *, raw: bool, display_id: bool) -> Handle:
        assert raw
        assert display_id
        shown.append(("display", content))
        return Handle()

    ipython, displays = ModuleType("IPython"), ModuleType("IPython.display")
    vars(ipython)["get_ipython"] = lambda: SimpleNamespace(kernel=object())
    vars(displays)["display"] = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", displays)
    return shown


def texts(shown: Shown) -> list[str]:
    return [f"{kind} {content['text/plain']}" for kind, content in shown]


def run(clock: Clock, steps: list[tuple[float, int]], total: int | None = 4_000_000) -> None:
    with progress("Reading", total, bytes_text, now_s=clock) as update:
        for seconds, done in steps:
            clock.now_s += seconds
            update(done)


def test_a_long_call_in_a_notebook_shows_a_bar_and_leaves_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown = notebook(monkeypatch)
    run(Clock(), [(LONG_S / 2, 1_000_000), (LONG_S, 2_000_000), (0.01, 2_500_000), (2, 4_000_000)])
    assert texts(shown) == [
        "display Reading: 0 B of 4 MB, 1.5s",
        "update Reading: 2 MB of 4 MB, 1.5s",
        "update Reading: 4 MB of 4 MB, 3.5s",
        "update Reading: 4 MB of 4 MB, 3.5s",
    ]
    assert '<progress max="4000000" value="2000000">' in shown[1][1]["text/html"]
    assert "<progress" not in shown[-1][1]["text/html"]


def test_a_short_call_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = notebook(monkeypatch)
    run(Clock(), [(LONG_S / 3, 1), (LONG_S / 3, 2)])
    assert shown == []


def test_an_unknown_total_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = notebook(monkeypatch)
    run(Clock(), [(2, 1_000_000)], total=None)
    assert texts(shown)[-1] == "update Reading: 1 MB, 2s"
    assert "<progress>" in shown[0][1]["text/html"]


def test_a_reader_shows_the_rows_of_all_its_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = notebook(monkeypatch)
    show_progress(True)
    batches = [pa.record_batch({"n": range(rows)}) for rows in (5, 3, 2)]
    reader = pa.RecordBatchReader.from_batches(batches[0].schema, batches)
    counted = with_progress(reader, "Reading", 20, str, lambda rows: 2 * rows)
    assert [batch.num_rows for batch in counted] == [5, 3, 2]
    assert texts(shown)[-1].startswith("update Reading: 20 of 20, ")


def test_a_failed_call_ends_its_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, clock = notebook(monkeypatch), Clock()

    def fail() -> None:
        with progress("Reading", 10, bytes_text, now_s=clock) as update:
            clock.now_s += 2
            update(5)
            raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        fail()
    assert "<progress" not in shown[-1][1]["text/html"]


@pytest.mark.parametrize("how", ["call", "environment"])
def test_bars_are_switched_off(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    shown = notebook(monkeypatch)
    if how == "call":
        show_progress(False)
    else:
        monkeypatch.setenv("TIDELOG_PROGRESS", "0")
    run(Clock(), [(5, 1)])
    assert shown == []
    if how == "environment":
        show_progress(True)  # the call overrides the setting
        run(Clock(), [(0, 1)])
        assert shown


@pytest.mark.parametrize("how", ["call", "environment"])
def test_every_call_shows_a_bar_at_once_if_that_is_chosen(
    monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    shown = notebook(monkeypatch)
    if how == "call":
        show_progress(True)
    else:
        monkeypatch.setenv("TIDELOG_PROGRESS", "1")
    run(Clock(), [(0, 1)])
    assert [kind for kind, _ in shown] == ["display", "update", "update"]


def test_other_threads_show_none(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = notebook(monkeypatch)
    thread = threading.Thread(target=run, args=(Clock(), [(5, 1)]))
    thread.start()
    thread.join()
    assert shown == []


def test_a_script_shows_a_bar_only_in_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    show_progress(True)
    run(Clock(), [(5, 2_000_000)])
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("Reading", 4_000_000, bytes_text, now_s=Clock()) as update:
        update(2_000_000)
        print("a row")  # the caller's own output
    output = capsys.readouterr()
    assert "2 MB of 4 MB" in output.err
    assert output.out == "a row\n"
    show_progress(None)
    run(Clock(), [(5, 2_000_000)])
    assert capsys.readouterr().err == ""


def write(path: Path) -> None:
    with tidelog.open(path, writable=True) as log:
        log.create_topic("t", config={"retention.ms": "-1"})
        records = [tidelog.NewRecord(key=b"%d" % n, value=b"v", timestamp=n) for n in range(300)]
        for _ in range(3):
            log.append("t", records)


def test_reads_counts_and_tables_show_their_progress(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write(tmp_path)
    with tidelog.open(tmp_path) as log:
        plain = log.scan("t").to_arrow().read_all(), log.count("t", end=150)
        rows = log.table("t").to_table()
        shown = notebook(monkeypatch)
        show_progress(True)
        assert log.scan("t").to_arrow().read_all() == plain[0]
        assert log.scan("t").to_arrow(threads=1).read_all() == plain[0]
        assert [text.split(":")[0] for text in texts(shown) if text.startswith("display")] == [
            "display Reading",
            "display Reading",
        ]
        del shown[:]
        assert log.count("t", end=150) == plain[1]
        first, then = (text.partition(",")[0].split(": ")[1] for text in texts(shown)[:2])
        assert first == f"0 B of {then.split(' of ')[1]}"
        assert then.split(" of ")[0] == then.split(" of ")[1]
        del shown[:]
        assert log.table("t").to_table() == rows
        assert {content["text/plain"].split(":")[0] for _, content in shown} == {"Reading"}


def test_a_real_notebook_shows_a_bar(tmp_path: Path) -> None:
    write(tmp_path / "data")
    code = (
        "import tidelog\ntidelog.show_progress(True)\nwith tidelog.open('data') as log:\n"
        "    rows = log.scan('t').to_arrow().read_all().num_rows\nrows"
    )
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])  # type: ignore[no-untyped-call] # nbformat has no hint
    NotebookClient(book, resources={"metadata": {"path": str(tmp_path)}}).execute()
    bar, value = book.cells[0].outputs
    assert bar.data["text/html"].startswith("Reading: ")
    assert value.data["text/plain"] == "900"
