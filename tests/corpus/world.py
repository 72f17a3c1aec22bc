"""Directives of scenes: damage, time, brokers, processes. Each directive is a method of `World`."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import IO, TYPE_CHECKING, Final

from confluent_kafka import Consumer, TopicPartition
from tests.corpus import still
from tests.corpus.logs import FEW
from tests.corpus.shell import Ran, run
from tests.corpus.stage import ROOT

import tidelog

if TYPE_CHECKING:
    from collections.abc import Callable

WAIT_S: Final = 60
_LOCK: Final = """
import sys, tidelog
with tidelog.open(sys.argv[1], writable=True):
    print("open", flush=True)
    sys.stdin.read()
"""


class World:
    """State of one scene. Processes that the scene has started end with the scene.

    Attributes:
        variables: Environment variables of commands.
    """

    def __init__(self, ends: ExitStack) -> None:
        self.variables: dict[str, str] = {}
        self._ends = ends
        self._addresses: dict[str, str] = {}
        self._started: dict[str, Child] = {}

    def does(self, line: str) -> list[str]:
        """Run a directive; return its visible result. The text of `write` may contain quotes."""
        words = line.split(" ", 2) if line.startswith("write ") else shlex.split(line)
        directive: Callable[..., list[str] | None] = getattr(self, words[0])
        return directive(*words[1:]) or []

    def filled(self, argument: str) -> str:
        """Return an argument with paths in place of `HERE`, and addresses in place of names."""
        argument = argument.replace("HERE", str(Path.cwd()))
        for name, address in self._addresses.items():
            argument = argument.replace(name, address)
        return argument

    # -- files -------------------------------------------------------------------------------

    def flip(self, path: str, at: str) -> None:
        """Change a byte; a negative position counts from the end."""
        data = bytearray(Path(path).read_bytes())
        data[int(at)] ^= 0xFF
        Path(path).write_bytes(data)

    def cut(self, path: str, size: str) -> None:
        """Cut a file to `size` bytes.

        If `size` is negative, remove this many bytes from the end.
        """
        Path(path).write_bytes(Path(path).read_bytes()[: int(size)])

    def write(self, path: str, text: str) -> None:
        r"""Write a text file; `\n` is a line end."""
        Path(path).write_text(text.replace("\\n", "\n"))

    def extend(self, path: str, digits: str) -> None:
        """Append bytes to a file."""
        with Path(path).open("ab") as file:
            file.write(bytes.fromhex(digits))

    def spoil(self, path: str, suffix: str) -> list[str]:
        """Change the first byte of a directory's first nonempty file with this suffix."""
        found = min(one for one in Path(path).rglob(f"*{suffix}") if one.stat().st_size)
        self.flip(str(found), "0")
        return [str(found)]

    def save(self, path: str, *arguments: str) -> None:
        """Write the stdout of a command to a file."""
        Path(path).write_bytes(run(*map(self.filled, arguments), variables=self.variables).out)

    def remove(self, path: str) -> None:
        """Remove a file or a directory."""
        if Path(path).is_dir():
            shutil.rmtree(path)
        else:
            Path(path).unlink()

    def copy(self, source: str, target: str) -> None:
        """Copy a file or a directory; `ROOT` is the checkout."""
        found = Path(source.replace("ROOT", str(ROOT)))
        if found.is_dir():
            shutil.copytree(found, target)
        else:
            shutil.copyfile(found, target)

    def move(self, source: str, target: str) -> None:
        """Rename a file or a directory."""
        Path(source).rename(target)

    def mkdir(self, path: str) -> None:
        """Create a directory."""
        Path(path).mkdir()

    def ls(self, path: str) -> list[str]:
        """Return the files below a directory, each with its size.

        If a file contains the path of the current directory, its size depends on the path and is
        left out.
        """
        files = sorted(one for one in Path(path).rglob("*") if one.is_file())
        here = str(Path.cwd()).encode()
        lines = []
        for one in files:
            data = one.read_bytes()
            size = "" if here in data else f" {len(data)}"
            lines.append(f"{one.relative_to(path)}{size}")
        return lines

    def show(self, path: str) -> list[str]:
        """Return the text of a file."""
        return Path(path).read_text().splitlines()

    # -- surroundings ------------------------------------------------------------------------

    def time(self, minutes: str) -> None:
        """Advance time by some minutes."""
        still.advance(int(float(minutes) * 60_000))

    def env(self, *words: str) -> None:
        """Set an environment variable."""
        name, _, value = " ".join(words).partition("=")
        self.variables[name] = value

    def lock(self, path: str) -> None:
        """Let another process open a directory for writing, which locks it."""
        holder = subprocess.Popen(
            [sys.executable, "-c", _LOCK, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"

        def end() -> None:
            holder.communicate()

        self._ends.callback(end)

    # -- brokers -----------------------------------------------------------------------------

    def broker(self, data: str, *settings: str, name: str = "BROKER") -> None:
        """Start a broker on a directory. In commands, `name` stands for the broker's address.

        From then on until the end of the scene, monotonic time runs, because the broker uses it to
        wait.
        """
        still.run()
        self._ends.callback(still.run, is_running=False)
        given = dict(setting.split("=", 1) for setting in settings)
        found = self._ends.enter_context(tidelog.broker(data, settings={**FEW, **given}))
        name = "OTHER" if name in self._addresses else name
        self._addresses[name] = found.bootstrap_servers

    def commit(self, group: str, *places: str) -> None:
        """Commit offsets of a group, each given as `TOPIC:P=OFFSET`."""
        consumer = self._consumer(group)
        offsets = []
        for place in places:
            topic, partition, offset = place.replace("=", ":").split(":")
            offsets.append(TopicPartition(topic, int(partition), int(offset)))
        consumer.commit(offsets=offsets, asynchronous=False)
        consumer.close()

    def member(self, group: str, topic: str) -> None:
        """Run a consumer as a member of a group."""
        consumer = self._consumer(group)
        consumer.subscribe([topic])
        end = time.monotonic() + WAIT_S
        while not consumer.assignment() and time.monotonic() < end:
            consumer.poll(0.05)
        self._ends.callback(consumer.close)

    def _consumer(self, group: str) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": self._addresses["BROKER"],
                "group.id": group,
                "client.id": "corpus",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )

    # -- commands that run until they are stopped ----------------------------------------------

    def serve(self, *arguments: str) -> list[str]:
        """Run `tidelog serve` and stop it by SIGTERM as soon as it listens."""
        return self._child("listening on", ["serve", *arguments]).lines(signal.SIGTERM)

    def start(self, name: str, text: str, *arguments: str) -> None:
        """Run a command in the background, and wait until it has written a text."""
        self._started[name] = self._child(text, list(arguments))

    def stop(self, name: str) -> list[str]:
        """Stop a command by SIGINT; return its output."""
        return self._started.pop(name).lines(signal.SIGINT)

    def end(self, name: str) -> list[str]:
        """Wait until a command ends by itself; return its output."""
        return self._started.pop(name).lines(None)

    def _child(self, text: str, arguments: list[str]) -> "Child":
        child = Child([*map(self.filled, arguments)], self.variables)
        self._ends.callback(child.kill)
        child.wait_for(text)
        return child


class Child:
    """A command in a separate process whose clocks are stopped at the current time of the scene."""

    def __init__(self, arguments: list[str], variables: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.corpus.shell", str(still.now_ms()), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        )
        self._out: list[str] = []
        self._err: list[str] = []
        self._written: Queue[str | None] = Queue()
        self._readers = [
            Thread(target=self._read, args=pair, daemon=True)
            for pair in ((self._process.stdout, self._out), (self._process.stderr, self._err))
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: IO[str], lines: list[str]) -> None:
        for line in stream:
            lines.append(line)
            self._written.put(line)
        self._written.put(None)

    def wait_for(self, text: str) -> None:
        """Wait until a line of stdout or stderr contains a text, or the command has ended."""
        ended = 0
        while ended < len(self._readers):
            line = self._written.get()
            if line is None:
                ended += 1
            elif text in line:
                return

    def lines(self, signal_number: int | None) -> list[str]:
        """Send a signal to the command and wait for its end; return its output."""
        if signal_number is not None:
            self._process.send_signal(signal_number)
        code = self._process.wait(timeout=WAIT_S)
        for reader in self._readers:
            reader.join(WAIT_S)
        out, err = ("".join(lines).encode() for lines in (self._out, self._err))
        return Ran(code, out, err).lines()

    def kill(self) -> None:
        """Kill the command if it still runs."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
