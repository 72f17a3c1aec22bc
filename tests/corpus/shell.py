"""Runs commands in this process, as on a terminal of 80 columns, and makes transcripts of them.

The entry point is that of the program `tidelog` in `pyproject.toml`.
"""

import io
import json
import os
import shlex
import signal
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Final

from tests.corpus import still

ROOT: Final = Path(__file__).parents[2]
COLUMNS: Final = 80
# Time limit of a command in seconds; a command that takes longer is ended, and its transcript
# reports that.
PATIENCE_S: Final = 240


@cache
def entry_point() -> Callable[[], None]:
    """Return the function that the program `tidelog` calls."""
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    module, _, name = scripts["tidelog"].partition(":")
    found: Callable[[], None] = getattr(import_module(module), name)
    return found


@dataclass(frozen=True, slots=True)
class Ran:
    """Result of a command.

    Attributes:
        code: Its exit code, or the error that it raised.
        out: Its stdout.
        err: Its stderr.
    """

    code: int | str
    out: bytes
    err: bytes

    def lines(self) -> list[str]:
        """Return stdout's lines after `|`, stderr's after `!`, and the exit code after `=`."""
        return [*marked("|", shown(self.out)), *marked("!", shown(self.err)), f"= {self.code}"]


def run(*arguments: str, stdin: bytes = b"", variables: Mapping[str, str] | None = None) -> Ran:
    """Run `tidelog` with these arguments in the current directory."""
    out, err = io.BytesIO(), io.BytesIO()
    with _streams(stdin, out, err), _variables({"COLUMNS": f"{COLUMNS}", **(variables or {})}):
        argv, sys.argv = sys.argv, ["tidelog", *arguments]
        code: int | str = 0
        _alarm(PATIENCE_S)
        try:
            entry_point()()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else f"{ended.code}"
        except (Exception, Hangs) as error:  # noqa: BLE001 - what a user would see as a traceback
            code = f"raised {type(error).__name__}: {error}"
        finally:
            _alarm(0)
            sys.argv = argv
    return Ran(code, out.getvalue(), err.getvalue())


class Hangs(BaseException):
    """A command has not ended in time."""


def _alarm(seconds: int) -> None:
    def ring(_signal: int, _frame: object) -> None:
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            # The command may run an event loop, which handles SIGTERM as a normal end, but would
            # swallow an error that is raised here.
            os.kill(os.getpid(), signal.SIGTERM)
        raise Hangs(f"no end after {PATIENCE_S} s")

    signal.signal(signal.SIGALRM, ring)
    signal.alarm(seconds)


@contextmanager
def _streams(stdin: bytes, out: io.BytesIO, err: io.BytesIO) -> Iterator[None]:
    before = sys.stdin, sys.stdout, sys.stderr
    new = [
        io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
        for raw in (io.BytesIO(stdin), out, err)
    ]
    sys.stdin, sys.stdout, sys.stderr = new
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        for stream in new:
            stream.flush()
            stream.detach()


@contextmanager
def _variables(changes: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(changes)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# ------------------------------------------------------------------------------- Transcripts


def command_line(arguments: list[str]) -> str:
    """Return a command as typed."""
    return f"$ tidelog {shlex.join(arguments)}".rstrip()


def marked(mark: str, lines: list[str]) -> list[str]:
    """Return each line with the mark and a space before it; for an empty line, the mark alone."""
    return [f"{mark} {line}" if line else mark for line in lines]


def shown(data: bytes) -> list[str]:
    """Return output as lines; Arrow and Parquet data become the rows of their tables."""
    if data[:4] == b"PAR1" or data[:4] == b"\xff\xff\xff\xff":
        return _table_lines(data)
    text = data.decode("utf-8", "backslashreplace")
    lines = text.split("\n")
    if lines[-1]:
        lines[-1] += "(no line end)"
    else:
        lines.pop()
    return [escaped(line) for line in lines]


def escaped(text: str) -> str:
    """Return the text with escapes for unprintable characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _table_lines(data: bytes) -> list[str]:
    import pyarrow as pa
    from pyarrow import parquet

    is_stream = data[:4] != b"PAR1"
    table = (
        pa.ipc.open_stream(data).read_all()
        if is_stream
        else parquet.read_table(pa.BufferReader(data))
    )
    kind = "an Arrow stream" if is_stream else "a Parquet file"
    fields = [f"  {field.name}: {field.type}" for field in table.schema]
    rows = [json.dumps(row, default=_cell, ensure_ascii=False) for row in table.to_pylist()]
    return [f"({kind})", *fields, *map(escaped, rows)]


def _cell(value: object) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else f"{value}"


def _main(now_ms: str, *arguments: str) -> None:
    """Run a command in this process, with the clocks stopped at `now_ms`."""
    still.hold()
    still.set_time(int(now_ms))
    still.run(is_running=arguments[0] != "serve")  # serve prints the duration of its start
    still.draw_for(" ".join(arguments[:1]))
    sys.argv = ["tidelog", *arguments]
    entry_point()()


if __name__ == "__main__":
    _main(*sys.argv[1:])
