"""The control channel of a running broker: frames of JSON on a unix socket."""

import json
import os
import socket
import struct
from pathlib import Path
from typing import Final

from tests.corpus.exchanges.batches import batch
from tests.corpus.exchanges.registry import FLIGHTS, append, flights
from tests.corpus.exchanges.scripts.records import produced
from tests.corpus.exchanges.session import HOME_SHOWN, NOW_MS, Stage
from tests.worlds.waiting import PATIENCE_S

SOCKET: Final = "tidelog-control.sock"
HOUR_MS: Final = 3_600_000
# Recorded in place of the broker's process id.
PROCESS_SHOWN: Final = 4242


class Channel:
    """One connection; requests and responses are recorded."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._socket = self._connected()

    def _connected(self) -> socket.socket:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.settimeout(PATIENCE_S)
        made.connect(str(self._stage.home / SOCKET))
        return made

    def close(self) -> None:
        self._socket.close()

    def ask(self, verb: str, version: int = 1, **arguments: object) -> None:
        """Send a request; record it and its response."""
        tree = {"version": version, "verb": verb, "arguments": arguments}
        self.send(json.dumps(tree).encode())

    def send(self, given: bytes, size: int | None = None) -> None:
        """Send a frame's length and bytes; record both and the response.

        If `size` is given, it is sent in place of the length.
        """
        said = self._stage.said
        size = len(given) if size is None else size
        said.append(f"== control: {size} bytes")
        said.append(f"> {self._shown(given)}")
        try:
            self._socket.sendall(struct.pack(">I", size) + given)
            head = self._taken(4)
            said.append(f"< {self._shown(self._taken(int.from_bytes(head, 'big')))}")
        except ConnectionError:
            said.append("< the connection was closed")
            self._socket.close()
            self._socket = self._connected()

    def _taken(self, size: int) -> bytes:
        made = bytearray()
        while len(made) < size:
            found = self._socket.recv(size - len(made))
            if not found:
                raise ConnectionError
            made += found
        return bytes(made)

    def _shown(self, given: bytes) -> str:
        text = given.decode("latin-1").replace(str(self._stage.home), HOME_SHOWN)
        return ascii(text.replace(f'"pid":{os.getpid()},', f'"pid":{PROCESS_SHOWN},'))


def play(home: Path) -> Stage:
    """Send each request that needs no other process."""
    with Stage(home, is_measured=True) as stage:
        flights(stage)
        stage.create_topic("keyed", 1, cleanup_policy="compact", segment_ms="1000")
        for number in range(3):
            append(stage, "keyed", batch(NOW_MS + number))
            stage.advance(2000)
        channel = Channel(stage)
        stage.chapter("asked")
        channel.ask("status")
        channel.ask("flush")
        channel.ask("reopen", topic=None, partition=None)
        channel.ask("reopen", topic=FLIGHTS, partition=0)
        channel.ask("erase", topic="keyed", key="azA=", execute=False)
        channel.ask("lend", topic="keyed", partition=0, roll=False, is_asked=True)
        _clock(stage, channel)
        stage.chapter("refused")
        channel.ask("status", version=2)
        channel.ask("no_such_verb")
        channel.ask("reopen", topic="none", partition=0)
        channel.ask("compact", topic=FLIGHTS, partition=0, roll=False, is_asked=True)
        channel.ask("compact", topic="keyed", partition=7, roll=False, is_asked=True)
        channel.ask("erase", topic="keyed", key="!", execute=False)
        channel.ask("erase", topic="none", key="azA=", execute=True)
        channel.ask("attach", segments=[], commit_id="", writer=None)
        channel.ask("flush", more=1)
        channel.send(b"[1]")
        channel.send(b"{}")
        channel.send(b"no JSON")
        channel.send(b"", size=1 << 30)
        channel.close()
    return stage


def _clock(stage: Stage, channel: Channel) -> None:
    """A log with append times ahead of the clock accepts appends again after `accept_clock`."""
    stage.chapter("clock")
    stage.note("the wall clock is set three hours ahead, and back")
    stage.clock.jump(stage.clock.now_ms() + 3 * HOUR_MS)
    made = batch(NOW_MS, [b"ahead"])
    stage.main.ask("produce", 9, produced(stage, made))
    stage.clock.jump(stage.clock.now_ms() - 3 * HOUR_MS)
    stage.main.ask("produce", 9, produced(stage, made))
    channel.ask("accept_clock")
    stage.main.ask("produce", 9, produced(stage, made))
