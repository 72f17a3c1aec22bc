"""Run commands in terminals of 80 and of 120 columns, and print what a user sees.

    python tools/command_looks.py demo-output/log flights > looks.txt

Lines that are wider than their terminal are listed at the end, and make the exit code 1. Colors
are omitted.
"""

import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator

from rich.cells import cell_len

WIDTHS = (80, 120)
# `{}` is the topic.
COMMANDS = (
    "topics",
    "describe {}",
    "config {} --all",
    "offsets {} --at latest",
    "offsets {} --at -6h --clock append",
    "count {}",
    "read {} --limit 10",
    "latency {}",
    "latency {} --late",
    "why {}",
    "doctor {}",
    "compact --plan",
    "tier --status",
    "retain --dry-run",
    "dump {log}",
)
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


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
    lines = _ESCAPES.sub("", text).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rpartition("\r")[2] for line in lines)  # the last state of a progress bar


def _chunks(reader: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(reader, 1 << 16)
        except OSError:  # Linux: the other end is closed
            return
        if not chunk:
            return
        yield chunk


def main() -> int:
    """Print all commands at all widths; return 1 if a line is too wide."""
    data, topic = sys.argv[1:]
    log = f"{data}/{topic}-0/{'0' * 20}.log"
    wide: list[str] = []
    for width in WIDTHS:
        for command in COMMANDS:
            words = command.format(topic, log=log).split()
            where = [] if words[0] == "dump" else ["--data", data]
            text = seen([*words, *where], width)
            print(f"{'=' * width}\n$ tidelog {' '.join(words)}\n{text}")
            wide += [
                f"{width}: {command}: {line}"
                for line in text.split("\n")
                if cell_len(line) > width and not line.startswith("tidelog: ")
            ]
    print("\n".join(["too wide:", *wide]) if wide else "no line is too wide")
    return 1 if wide else 0


if __name__ == "__main__":
    sys.exit(main())
