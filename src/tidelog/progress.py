"""Shows progress bars of long library calls, in notebooks and terminals.

In a notebook, a call that reads or counts records shows a bar after a second, and at the end it
shows one line with amount and time. In a script, a call shows a bar on stderr if
`show_progress(True)` was called or TIDELOG_PROGRESS is 1, and stderr is a terminal.
`show_progress(False)` or TIDELOG_PROGRESS=0 switches bars off. Calls in threads other than the main
thread show no bar.

Commands have their own bar (`tidelog.cli.surroundings`).
"""

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from tidelog.amounts import duration_text
from tidelog.arguments import reads_arguments

if TYPE_CHECKING:
    import pyarrow as pa

# Seconds after which a call counts as long, and seconds between two updates of its bar.
LONG_S: Final = 1.0
_UPDATE_S: Final = 0.2

_VARIABLE: Final = "TIDELOG_PROGRESS"

# Argument of the last call of `show_progress`; None before the first call.
_chosen: bool | None = None

Update = Callable[[int], None]


@reads_arguments()
def show_progress(shown: bool | None) -> None:
    """Choose whether long library calls of this process show a progress bar.

    Args:
        shown: True: every call in the main thread shows a bar from its start, also in terminals.
            False: no call shows a bar. None (the value before the first call): TIDELOG_PROGRESS in
            the environment decides; 1 means True, and 0 means False. Without this variable, only
            long calls in notebooks show a bar.
    """
    global _chosen  # noqa: PLW0603 - a choice for the whole process, as a logger's level
    _chosen = shown


class _Bar(Protocol):
    def update(self, done: int) -> None: ...
    def close(self, done: int) -> None: ...


@contextmanager
def progress(
    title: str,
    total: int | None,
    text: Callable[[int], str],
    *,
    now_s: Callable[[], float] = time.monotonic,
) -> Iterator[Update]:
    """Show the progress of a block; yields a function that takes the amount done so far.

    Args:
        title: What the block does, such as "Reading".
        total: Amount at the end; None if unknown.
        text: Function that formats an amount with its unit, such as `bytes_text`.
        now_s: Function that returns the time of a clock in seconds.
    """
    create = _kind_of_bar()
    if create is None:
        yield lambda _done: None
        return
    line = _Line(title, total, text, now_s)
    delayed = _DelayedBar(create, line, 0.0 if _choice() else LONG_S)
    try:
        yield delayed.update
    finally:
        delayed.close()


def with_progress(
    reader: "pa.RecordBatchReader",
    title: str,
    total: int | None,
    text: Callable[[int], str],
    done: Callable[[int], int],
) -> "pa.RecordBatchReader":
    """Return a reader that yields the same batches and shows a bar.

    If no bar is to be shown, return `reader` itself.

    Args:
        reader: The reader.
        title: Title of the bar.
        total: Amount at the end; None if unknown.
        text: Function that formats an amount.
        done: Function that returns the amount done for the number of rows read so far.
    """
    if _kind_of_bar() is None:
        return reader
    import pyarrow as pa

    def batches() -> "Iterator[pa.RecordBatch]":
        rows = 0
        with progress(title, total, text) as update:
            for batch in reader:
                rows += batch.num_rows
                update(done(rows))
                yield batch

    return pa.RecordBatchReader.from_batches(reader.schema, batches())


def _choice() -> bool | None:
    if _chosen is not None:
        return _chosen
    return {"0": False, "1": True}.get(os.environ.get(_VARIABLE, ""))


def _kind_of_bar() -> "Callable[[_Line], _Bar] | None":
    """Return the class of the bar to show in this thread now; None for no bar."""
    chosen = _choice()
    if chosen is False or threading.current_thread() is not threading.main_thread():
        return None
    # The module has no `get_ipython` yet while another thread imports IPython.
    get_shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    shell = None if get_shell is None else get_shell()
    if getattr(shell, "kernel", None) is not None:
        return _NotebookBar
    return _TerminalBar if chosen and sys.stderr.isatty() else None


class _Line:
    """Line of a progress bar: title, amounts and time of a call."""

    def __init__(
        self, title: str, total: int | None, text: Callable[[int], str], now_s: Callable[[], float]
    ) -> None:
        self.title = title
        self.total = total
        self._text = text
        self.now_s = now_s
        self.began_s = now_s()

    def amount(self, done: int) -> str:
        """Return amount, total and duration: `1.2 GB of 3.4 GB, 12s`."""
        of = "" if self.total is None else f" of {self._text(self.total)}"
        return f"{self._text(done)}{of}, {duration_text(self.now_s() - self.began_s)}"


class _DelayedBar:
    """A bar that appears when the call has taken some time, with a limited rate of updates."""

    def __init__(self, create: Callable[[_Line], _Bar], line: _Line, delay_s: float) -> None:
        self._create = create
        self._line = line
        self._bar: _Bar | None = None
        self._next_s = line.began_s + delay_s
        self._done = 0

    def update(self, done: int) -> None:
        self._done = done
        now_s = self._line.now_s()
        if now_s < self._next_s:
            return
        self._next_s = now_s + _UPDATE_S
        if self._bar is None:
            self._bar = self._create(self._line)
        self._bar.update(done)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close(self._done)


class _NotebookBar:
    """Bar in the output of a notebook cell.

    Each update replaces the output, and at the end a line of text replaces the bar.
    """

    def __init__(self, line: _Line) -> None:
        from IPython.display import display

        self._line = line
        self._handle = display(self._display_data(0), raw=True, display_id=True)  # type: ignore[no-untyped-call,unused-ignore] # some versions have no hint

    def _display_data(self, done: int) -> dict[str, str]:
        line = self._line
        limits = "" if not line.total else f' max="{line.total}" value="{min(done, line.total)}"'
        html = f"{line.title} <progress{limits}></progress> {line.amount(done)}"
        return {"text/html": html, "text/plain": f"{line.title}: {line.amount(done)}"}

    def update(self, done: int) -> None:
        self._handle.update(self._display_data(done), raw=True)

    def close(self, done: int) -> None:
        last = f"{self._line.title}: {self._line.amount(done)}"
        self._handle.update({"text/html": last, "text/plain": last}, raw=True)


class _TerminalBar:
    """Bar on stderr, drawn by the package rich. The bar disappears at the end."""

    def __init__(self, line: _Line) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._line = line
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[done]}"))
        # The caller may print while a reader shows its bar; this output must not be redirected.
        self._progress = Progress(
            *columns,
            console=Console(stderr=True),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._progress.start()
        # stops the bar at exit, if a reader is never read to its end
        atexit.register(self._progress.stop)
        self._task = self._progress.add_task(line.title, total=line.total, done="")

    def update(self, done: int) -> None:
        self._progress.update(self._task, completed=done, done=self._line.amount(done))

    def close(self, done: int) -> None:
        self.update(done)
        self._progress.stop()
        atexit.unregister(self._progress.stop)
