"""A broker with its own clock, random numbers and ids, and connections that record bytes.

Each exchange is recorded as its bytes, with their meaning beside them, one line per field. Only the
masks below change the recorded text.
"""

import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Final, Protocol, Self

from tests.corpus.exchanges import figures
from tests.corpus.exchanges.line import Line
from tests.corpus.exchanges.schema import api_name
from tests.corpus.exchanges.values import Tree, Value, at, listed, number, uuid
from tests.worlds.waiting import until

import tidelog

NOW_MS: Final = 1_750_000_000_000
ADVERTISED: Final = "broker.example:9092"
SETTINGS: Final[Mapping[str, str]] = {
    "listeners": "PLAINTEXT://127.0.0.1:0",
    "advertised.listeners": f"PLAINTEXT://{ADVERTISED}",
    "num.partitions": "2",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "connection.failed.authentication.delay.ms": "0",
}
# Fields whose values depend on the machine, as (API, field), each with the recorded value. In
# addition, HOME_SHOWN replaces the path of the data directory in every string, and PORT_SHOWN and
# the numbers after it replace the ports of listeners.
MASKS: Final[Mapping[tuple[str, str], Value]] = {
    ("describe_log_dirs", "total_bytes"): 1 << 40,
    ("describe_log_dirs", "usable_bytes"): 1 << 39,
}
HOME_SHOWN: Final = "/home"
FAILED: Final = "failed"
# The recorded port of the first listener; the next listeners have the following numbers.
PORT_SHOWN: Final = 9092
# `settle` sends this many requests, one after another. While the broker handles them, its event
# loop also reads all earlier requests and begins to handle these.
_TURNS: Final = 10


class Running(Protocol):
    """The methods and attributes of a running broker that the corpus uses."""

    @property
    def ports(self) -> Mapping[str, int]: ...

    @property
    def metrics_address(self) -> object: ...

    def run_due(self) -> int: ...

    def close(self) -> None: ...


class NumberedRandom(Random):
    """Random numbers that do not depend on other draws: each size has its own sequence."""

    def __init__(self) -> None:
        super().__init__(0)
        self._rows: dict[str, Random] = {}

    def _row(self, name: str) -> Random:
        return self._rows.setdefault(name, Random(name))

    def getrandbits(self, k: int, /) -> int:
        """Return the next number of that many bits."""
        return self._row(f"{k} bits").getrandbits(k)

    def randbytes(self, n: int) -> bytes:
        """Return the next bytes of that length."""
        return self._row(f"{n} bytes").randbytes(n)

    def random(self) -> float:
        """Return the next number in [0, 1)."""
        return self._row("below 1").random()


class Stage:
    """A broker, and the recorded exchanges with it.

    Settings whose value is empty are not passed to the broker. If the stage is measured, it records
    the broker's metrics before each restart and at the end.

    Attributes:
        clock: The broker's clock; `advance` moves it.
        chapters: The recorded lines, by chapter.
        topics: Ids of topics, by their names.
        asked: First normal request of each API and version, and the listener that received the
            request.
        stops: If true, a script's first normal request is not sent; `Stopped` is raised instead.
    """

    def __init__(
        self,
        home: Path,
        settings: Mapping[str, str] | None = None,
        *,
        clock: tidelog.ManualClock | None = None,
        is_measured: bool = False,
    ) -> None:
        self.home = home
        self.clock = clock or tidelog.ManualClock(NOW_MS)
        self.chapters: dict[str, list[str]] = {}
        self._chapter = "begin"
        self.said: list[str] = []
        self.topics: dict[str, Value] = {}
        self.asked: dict[tuple[str, int], tuple[str | None, Tree]] = {}
        self.stops = False
        self._is_measured = is_measured
        self._polled = set[str]()
        measured = figures.SETTINGS if is_measured else {}
        given = {**SETTINGS, **measured, **(settings or {})}
        self._settings = {name: value for name, value in given.items() if value}
        self._env = tidelog.Env(clock=self.clock, random=NumberedRandom())
        self.broker = self._started()
        self._lines: dict[str, Line] = {}
        self.main = self.line("main")

    def _started(self) -> Running:
        return tidelog.broker(str(self.home), settings=self._settings, env=self._env)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        """Close the broker; record a failure of the script, so that other scripts are still played.

        A broker that does not respond within `PATIENCE_S` ends the whole part.
        """
        failures = [] if error is None else [error]
        try:
            if error is None:
                self._record_metrics()
            self.close()
        except tidelog.TidelogError as failure:
            failures.append(failure)
        if failures:
            self.chapter(f"{self._chapter}-{FAILED}")
        self.said += [ascii(f"{type(each).__name__}: {each}") for each in failures]
        return isinstance(error, Exception) and not isinstance(error, TimeoutError)

    def close(self) -> None:
        """Close connections and broker."""
        for each in self._lines.values():
            each.close()
        self.broker.close()

    def restart(self, between: Callable[[], None] = lambda: None) -> None:
        """Close the broker; start a new one on the same directory, and open connections again."""
        self._record_metrics()
        self.note("the broker is restarted")
        self.close()
        between()
        self.broker = self._started()
        ports = self.broker.ports
        for each in self._lines.values():
            each.move(ports[each.listener] if each.listener else next(iter(ports.values())))

    def polled(self, api: str) -> None:
        """Leave the requests of an API out of the metrics, because their number varies."""
        self._polled.add(api.title().replace("_", ""))

    def _record_metrics(self) -> None:
        """Record the broker's metrics after all requests have been counted."""
        if not self._is_measured:
            return
        for each in self._lines.values():
            each.close()
        self.settle()
        address = self.broker.metrics_address
        found = until(
            lambda: figures.scraped(address), lambda lines: figures.connections(lines) == 0
        )
        number_ = sum(name.startswith("metrics") for name in self.chapters) + 1
        self.chapters[f"metrics-{number_}"] = list(figures.shown(found, self._polled))

    def chapter(self, name: str) -> None:
        """Record the following lines in another chapter."""
        self._chapter = name
        self.said = self.chapters.setdefault(name, [])

    def line(
        self, name: str, listener: str | None = None, context: ssl.SSLContext | None = None
    ) -> "Line":
        """Return the connection of this name; the first call with the name opens the connection."""
        if name not in self._lines:
            ports = self.broker.ports
            port = ports[listener] if listener else next(iter(ports.values()))
            self._lines[name] = Line(self, name, port, listener=listener, context=context)
        return self._lines[name]

    def note(self, words: str) -> None:
        """Record a step in which no bytes are sent, such as a change of the clock."""
        self.said.append(f"# {words}")

    def advance(self, delta_ms: int) -> None:
        """Move the clock forward, and let the broker run the timers that are then due.

        Before the clock moves, the broker reads all earlier requests and begins to handle them.
        """
        self.settle()
        self.note(f"the clock moves by {delta_ms} ms")
        self.clock.advance(delta_ms)
        self.broker.run_due()

    def settle(self) -> None:
        """Send unrecorded requests, so that the broker's loop reads all requests sent earlier."""
        line = Line(self, "settle", next(iter(self.broker.ports.values())))
        for _ in range(_TURNS):
            line.quiet("metadata", 9, {"topics": []})
        line.close()

    def masked(self, api: str, value: Value, name: str = "") -> Value:
        """Return the value as it is recorded, with masks applied."""
        if isinstance(value, dict):
            return {key: self.masked(api, each, key) for key, each in value.items()}
        if isinstance(value, list):
            return [self.masked(api, each, name) for each in value]
        if (api, name) in MASKS:
            return MASKS[api, name]
        return self._masked_text(value) if isinstance(value, str) else value

    def _masked_text(self, value: str) -> str:
        for number_, name in enumerate(self.broker.ports):
            place = f"127.0.0.1:{self.broker.ports[name]}"
            value = value.replace(place, f"127.0.0.1:{PORT_SHOWN + number_}")
        return value.replace(str(self.home), HOME_SHOWN)

    def create_topic(self, name: str, partitions: int = 2, **configs: str) -> None:
        """Create a topic; the request is not recorded."""
        given: list[Value] = [
            {"name": key.replace("_", "."), "value": value} for key, value in configs.items()
        ]
        topic: Tree = {
            "name": name,
            "num_partitions": partitions,
            "replication_factor": 1,
            "configs": given,
        }
        answer = self.main.quiet("create_topics", 7, {"topics": [topic], "timeout": 1000})
        assert number(answer, "topics", 0, "error_code") == 0, answer
        self.topics[name] = uuid(answer, "topics", 0, "topic_id")

    def torn(self, api: str, version: int) -> None:
        """Send a normal request without its last byte; record the response or disconnect."""
        listener, tree = self.asked[api, version]
        self.line("torn", listener).torn(api, version, tree)

    def open_all(self) -> None:
        """Let the broker open all partitions, so that no thread opens one during `advance`."""
        answer = self.main.quiet("metadata", 9, {"topics": None})
        for topic in listed(answer, "topics"):
            asked: list[Value] = [
                {"partition_index": at(part, "partition_index"), "timestamp": -1}
                for part in listed(topic, "partitions")
            ]
            tree: Tree = {"topics": [{"name": at(topic, "name"), "partitions": asked}]}
            self.main.quiet("list_offsets", 7, tree)

    def names(self) -> Iterator[tuple[str, int, int]]:
        """Yield the APIs that the broker announces, with their first and last versions."""
        asked: Tree = {"client_software_name": "corpus", "client_software_version": "1"}
        answer = self.main.quiet("api_versions", 4, asked)
        for each in listed(answer, "api_keys"):
            key = number(each, "api_key")
            yield api_name(key), number(each, "min_version"), number(each, "max_version")
