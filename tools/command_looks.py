"""Run commands in terminals of 80 and of 120 columns, and print what a user sees.

    python tools/command_looks.py demo-output/log flights > looks.txt

Every command runs once at each width. Commands that write nothing run on the given directory.
Commands that write run on a temporary directory. Commands for clusters run on a broker that serves
this temporary directory on loopback. The help of each command is also printed. Lines that are wider
than their terminal are listed at the end; if any line is too wide, the exit code is 1. Colors are
omitted.
"""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

from rich.cells import cell_len

from tidelog.cli.app import COMMANDS, JOBS

WIDTHS = (80, 120)
# Maximum number of lines of an output that are printed.
LINES_MAX = 40
# Commands that have subcommands.
GROUPS = {
    "groups": ("list", "describe", "delete"),
    "users": ("list", "add", "remove"),
    "acls": ("list", "add", "remove"),
    "quotas": ("list", "set", "remove"),
    "standby": ("status", "flush", "promote"),
    "spark": tuple(JOBS),
}
# Commands on the given directory; `{topic}` is the given topic.
READS = (
    "topics",
    "describe {topic}",
    "config {topic} --all",
    "offsets {topic} --at latest",
    "offsets {topic} --at -6h --clock append",
    "count {topic}",
    "count {topic} --from 2013-02-08 --to 2013-02-09 --zone America/New_York",
    "read {topic} --limit 10",
    "read {topic} --tail 3",
    "diff {topic} --from 2013-02-08Z --to 2013-02-09Z",
    "latency {topic}",
    "latency {topic} --late",
    "latency {topic} --show hours",
    "why {topic}",
    "doctor {topic}",
    "compact --plan",
    "tier --status",
    "retain --dry-run",
)
# Commands that run in this order on a new directory.
WRITES = (
    "create orders --partitions 2 --config cleanup.policy=compact --config segment.bytes=1MiB",
    "create notes --config retention.ms=7d",
    "produce orders --key 42 --value paid",
    "produce orders --key 43 --value open",
    "produce notes --key N14228 --value {long}",
    "produce nots --key N14228 --value typo",
    "config notes --set retention.ms=30d",
    "config notes --set retention.msx=30d",
    "partitions notes --to 3",
    "topics",
    "read orders",
    "read notes --order time",
    "compact orders --roll",
    "retain",
    "erase orders --key 42",
    "erase orders --key 42 --execute",
    "delete-records notes --before -30d",
    "delete notes",
    "accept-clock",
    "doctor",
    "standby status",
)
# Commands that run in this order on a broker that serves the directory of `WRITES`.
ON_BROKER = (
    "topics",
    "describe orders",
    "read orders",
    "offsets orders --at latest",
    "groups list",
    "groups describe planes",
    "lag",
    "lag planes",
    "rewind --group planes --topic orders --to earliest --execute",
    "groups list",
    "groups describe planes",
    "lag",
    "lag planes --show partitions",
    "rewind --group planes --to -6h",
    "groups delete planes",
    "users list",
    "acls list",
    "acls add --principal User:alice --topic orders --operation read",
    "quotas set producer_byte_rate=1048576 --user alice",
    "quotas list",
    "quotas remove producer_byte_rate --user alice",
)
# Escape sequence that moves the cursor up one line, before the line is written again.
_UP = "\x1b[1A"
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_ADDRESS = re.compile(r"127\.0\.0\.1:\d+")


class Looks:
    """Prints the outputs of commands at one width, and collects the lines that are too wide."""

    def __init__(self, width: int) -> None:
        """`width` is the number of columns of the terminal."""
        self._width = width
        self.wide: list[str] = []

    def show(self, words: list[str]) -> None:
        """Run a command and print what a user sees."""
        text = seen(words, self._width)
        lines = text.rstrip("\n").split("\n")
        more = [f"[{len(lines) - LINES_MAX} more lines]"] if len(lines) > LINES_MAX else []
        print(f"{'=' * self._width}\n$ tidelog {' '.join(words)}")
        print("\n".join([*lines[:LINES_MAX], *more]), flush=True)
        self.wide += [
            f"{self._width}: {' '.join(words)}: {line}"
            for line in lines
            # JSON lines may be wider
            if cell_len(line) > self._width and not line.lstrip().startswith('"')
        ]


def seen(words: list[str], width: int) -> str:
    """Return the output of a command to a terminal, stdout and stderr together."""
    reader, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color"}
    environment.pop("COLUMNS", None)
    subprocess.run(["stty", "cols", f"{width}", "rows", "50"], stdin=terminal, check=True)
    command = [sys.executable, "-m", "tidelog.cli.app", *words]
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment
    )
    os.close(terminal)
    text = b"".join(_chunks(reader)).decode("utf-8", "replace")
    process.wait()
    os.close(reader)
    return "\n".join(_last_state(text))


def _last_state(text: str) -> list[str]:
    """Return the lines of an output, with only the last state of each progress bar."""
    lines: list[str] = []
    for line in text.replace("\r\n", "\n").split("\n"):
        del lines[len(lines) - line.count(_UP) :]
        lines.append(_ESCAPES.sub("", line).rpartition("\r")[2])
    return lines


def _chunks(reader: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(reader, 1 << 16)
        except OSError:  # on Linux, an error if the other end is closed
            return
        if not chunk:
            return
        yield chunk


@contextmanager
def _broker(data: str) -> Iterator[str]:
    """Run a broker on a directory, listening on loopback; yield its address."""
    command = [sys.executable, "-m", "tidelog.cli.app", "serve", "--data", data]
    process = subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        line = process.stdout.readline() if process.stdout is not None else ""
        address = _ADDRESS.search(line)
        if address is None:
            raise RuntimeError(f"the broker printed no address: {line!r}")
        yield address[0]
    finally:
        process.terminate()
        process.wait()


def _helps() -> Iterator[list[str]]:
    """Yield the words of each command's help."""
    yield ["--help"]
    for name in COMMANDS:
        yield [name, "--help"]
    for group, names in GROUPS.items():
        yield from ([group, name, "--help"] for name in names)


def main() -> int:
    """Print all commands at all widths; return 1 if a line is too wide."""
    data, topic = sys.argv[1:]
    log = f"{data}/{topic}-0/{'0' * 20}.log"
    wide: list[str] = []
    for width in WIDTHS:
        looks = Looks(width)
        for command in READS:
            looks.show([*command.format(topic=topic).split(), "--data", data])
        looks.show(["dump", log])
        with TemporaryDirectory() as scratch:
            new = f"{scratch}/data"
            for command in WRITES:
                looks.show([*command.format(long="v" * 200).split(), "--data", new])
            with _broker(new) as address:
                for command in ON_BROKER:
                    looks.show([*command.split(), "--bootstrap", address])
                looks.show(["reopen", "--data", new])
                copy = f"{scratch}/copy"
                looks.show(["follow", address, "--data", copy, "--once"])
                looks.show(["standby", "status", "--data", copy])
                looks.show(["audit", new, copy])
                ends = ["--from", address, "--to", address]
                looks.show(["failover", "--group", "planes", *ends, "--max-latency", "2m"])
        for words in _helps():
            looks.show(words)
        wide += looks.wide
    print("\n".join(["too wide:", *wide]) if wide else "no line is too wide")
    return 1 if wide else 0


if __name__ == "__main__":
    sys.exit(main())
