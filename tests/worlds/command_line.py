"""Runs commands in this process on a test's own directory, with a clock that the test moves."""

import io
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import BinaryIO

from tidelog.cli.app import run
from tidelog.cli.surroundings import Surroundings
from tidelog.env import Env, FileSystem, ManualClock, OsFileSystem
from tidelog.types import NewRecord

NOW = 1_700_000_000_000
NOW_ISO = "2023-11-14T22:13:20.000Z"


class Terminal(io.TextIOWrapper):
    """A stream that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


class TerminalInput(io.BytesIO):
    """An input that claims to be a terminal."""

    def isatty(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Result:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str
    raw: bytes

    @property
    def objects(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.split("\n") if line]

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@dataclass(slots=True)
class Cli:
    """The command line on `data`, with a clock that only the test moves."""

    data: Path
    clock: ManualClock = field(default_factory=lambda: ManualClock(NOW))
    variables: dict[str, str] = field(default_factory=dict)
    wait: Callable[[float], None] = lambda _seconds: None
    on_terminal: bool = False
    asked: bool = False  # stdin is a terminal
    url: str | None = None  # replaces `data`
    files: FileSystem = field(default_factory=OsFileSystem)
    stdin: BinaryIO | None = None  # replaces the argument `stdin` of `run`

    @property
    def env(self) -> Env:
        return Env(files=self.files, clock=self.clock, random=Random(1))

    def run(self, *arguments: str, stdin: bytes = b"") -> Result:
        """Run a command; add `--data` if the command has this option and `arguments` omit it."""
        raw, err = io.BytesIO(), io.StringIO()
        kind = Terminal if self.on_terminal else io.TextIOWrapper
        out = kind(raw, encoding="utf-8", write_through=True)
        surroundings = Surroundings(
            env=self.env,
            stdin=self.stdin or (TerminalInput(stdin) if self.asked else io.BytesIO(stdin)),
            stdout=out,
            stderr=err,
            wait=self.wait,
            variables=self.variables,
        )
        first = arguments[0] if arguments else "-"
        has_none = {"dump", "failover", "spark", "audit", "--data", "--bootstrap"} & {
            first,
            *arguments[1:],
        }
        has_data = not has_none and not first.startswith("-")
        extra = ("--data", self.url or str(self.data)) if has_data else ()
        code = run([*arguments, *extra], surroundings)
        out.flush()
        data = raw.getvalue()
        return Result(code, data.decode("utf-8", "replace"), err.getvalue(), data)

    def ok(self, *arguments: str, stdin: bytes = b"") -> Result:
        """Run a command that must succeed."""
        result = self.run(*arguments, stdin=stdin)
        assert result.code == 0, result.err
        return result

    def append(self, *records: NewRecord, topic: str = "flights", partition: int = 0) -> None:
        """Append records at the clock's time."""
        from tidelog.directory import Directory

        with Directory.open(str(self.data), writable=True, env=self.env) as directory:
            directory.append(topic, records, partition=partition)


def at(ms: int, key: bytes | None = None, value: bytes | None = b"v") -> NewRecord:
    return NewRecord(key=key, value=value, timestamp=ms)
