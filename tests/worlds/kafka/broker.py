"""A real Apache Kafka broker for tests: one node, KRaft combined mode, on a free loopback port.

`Broker.start` formats the directory once and waits for the broker's log line that it has started.
`stop()` shuts the broker down cleanly, `kill()` ends its process at once. A kill loses no written
data, because the operating system still writes the data to disk. A stopped broker starts again on
the same directory and port, so a test can change `log_dir` in between.
"""

import base64
import contextlib
import queue
import random
import re
import socket
import subprocess
import threading
import uuid
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import TypeAlias

from confluent_kafka import Consumer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic
from tests.worlds.kafka.home import QUICK_JVM, KafkaHome
from tests.worlds.kafka.oracle import Oracle
from tests.worlds.waiting import until_so

from tidelog.types import EARLIEST_TIMESTAMP

ClientConfig: TypeAlias = dict[str, str | int | float | bool]

START_TIMEOUT_S = 90
STOP_TIMEOUT_S = 60
CLEAN_TIMEOUT_S = 60
# Lines of Kafka's log which show that the cleaner has cleaned a partition, or has failed and will
# not retry.
CLEANED = re.compile(r"cleaned log (\S+) \(dirty section|when cleaning log Log\(dir=\S*/([^/,]+),")
REQUEST_TIMEOUT_S = 90
CREATE_TRIES = 1000
STARTED = "Kafka Server started"

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "num.partitions": "1",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
    # The session timeouts are long, so that no member times out on a busy machine.
    "group.consumer.session.timeout.ms": "600000",
    "group.consumer.max.session.timeout.ms": "600000",
    "group.share.assignment.interval.ms": "0",
    "group.share.session.timeout.ms": "600000",
    "group.share.max.session.timeout.ms": "600000",
    "share.coordinator.state.topic.num.partitions": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "auto.create.topics.enable": "false",
    "unstable.api.versions.enable": "false",
    # Keep records with old timestamps: the default retention of a week would delete a replayed log
    # within minutes.
    "log.retention.ms": "-1",
    "log.initial.task.delay.ms": "100",
    "log.retention.check.interval.ms": "1000",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.segment.delete.delay.ms": "1000",
    # The times are short: a single node needs no votes, and after a restart it must not wait long
    # until its previous session ends.
    "controller.quorum.election.timeout.ms": "100",
    "controller.quorum.election.backoff.max.ms": "100",
    "controller.quorum.fetch.timeout.ms": "200",
    "broker.heartbeat.interval.ms": "200",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "background.threads": "2",
}

# With PATIENT, the broker's session does not expire on a busy machine: an expired session would
# leave the broker's partitions without a leader. After a kill, however, the next start waits until
# the old session expires.
PATIENT = {"broker.session.timeout.ms": "30000"}
IMPATIENT = {"broker.session.timeout.ms": "3000"}

# File in which Linux states the range of ports that it assigns by itself.
CHOSEN_BY_SYSTEM = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORTS_AT_ONCE = 12_000
# Ports to use if that file is missing, or if the system's range begins below 4,000.
SOME_PORTS = range(20_000, 32_000)


def client_settings(bootstrap: str, **more: str | int | float | bool) -> ClientConfig:
    """Return librdkafka settings for a broker; names in `more` have underscores for dots."""
    settings: ClientConfig = {"bootstrap.servers": bootstrap, "log_level": 2}
    settings.update((key.replace("_", "."), value) for key, value in more.items())
    return settings


def steady_ports(said: Path = CHOSEN_BY_SYSTEM) -> range:
    """Return ports that the system does not assign, so that a port stays free for a restart."""
    if not said.exists():
        return SOME_PORTS
    first = int(said.read_text().split()[0])
    return range(max(first - PORTS_AT_ONCE, 2_000), first) if first >= 4_000 else SOME_PORTS


def free_port() -> int:
    """Return a free loopback port that the system will not assign to another process."""
    draw, ports = random.SystemRandom(), steady_ports()  # processes share the seed of `random`
    while True:
        port = draw.choice(ports)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def new_cluster_id() -> str:
    """Return a random id in Kafka's form: 22 URL-safe characters that don't begin with a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text


class Broker:
    """One Kafka node in `folder`. One thread can start and stop the node repeatedly."""

    def __init__(
        self,
        home: KafkaHome,
        oracle: Oracle,
        folder: Path,
        *,
        settings: Mapping[str, str] | None = None,
        jvm: Sequence[str] = QUICK_JVM,
    ) -> None:
        """Format `folder`; `settings` override the settings that all tests share."""
        self._home = home
        self._jvm = jvm
        self._settings = SETTINGS | dict(settings or {})
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._cleaned: set[str] = set()
        self.port = free_port()
        self.log_dir = folder / "data"
        self._properties = folder / "server.properties"
        self._configure(oracle)

    @property
    def bootstrap(self) -> str:
        """Address for clients, `host:port`."""
        return f"127.0.0.1:{self.port}"

    def _configure(self, oracle: Oracle) -> None:
        while (controller := free_port()) == self.port:
            pass
        listeners = f"PLAINTEXT://{self.bootstrap},CONTROLLER://127.0.0.1:{controller}"
        places = {
            "listeners": listeners,
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.quorum.voters": f"{self._settings['node.id']}@127.0.0.1:{controller}",
            "log.dirs": str(self.log_dir),
            "metadata.log.dir": str(self._folder / "metadata"),
        }
        self.log_dir.mkdir(parents=True)
        self._settings |= places
        self._write_properties(PATIENT)
        told = oracle.ask(
            "format_storage",
            args=["format", "-t", new_cluster_id(), "-c", str(self._properties)],
        )
        assert isinstance(told, dict)
        assert told["status"] == 0, told

    def _write_properties(self, more: Mapping[str, str]) -> None:
        lines = [f"{key}={value}" for key, value in (dict(more) | self._settings).items()]
        self._properties.write_text("\n".join(lines) + "\n")

    def start(self) -> None:
        """Start the process, and wait until the broker leads the partitions in its files."""
        assert self._process is None
        command = self._home.java_command(
            "tidelog.kafka.Node", str(self._properties), jvm=self._jvm
        )
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self._folder
        )
        threading.Thread(target=self._listen, args=(self._process,), daemon=True).start()
        self.await_line(STARTED)
        if any(self.log_dir.glob("*-*/")):
            self._await_own()

    def _await_own(self) -> None:
        """Wait until the leaders of the existing topics respond.

        The broker reports its start before the controller assigns leaders to its partitions. In
        some tests a partition never gets a leader, so the number of attempts is limited.
        """
        admin = AdminClient(self.client_config())
        for name, led in self._led(admin).items():
            self._await_leaders(admin, name, led)

    @staticmethod
    def _led(admin: AdminClient) -> dict[str, list[int]]:
        """Return the partitions with a leader, by topic; retry while a partition has no leader."""
        found: dict[str, list[int]] = {}
        for _ in range(CREATE_TRIES):
            topics = admin.list_topics(timeout=REQUEST_TIMEOUT_S).topics.values()
            found = {
                str(topic.topic): [n for n, p in topic.partitions.items() if p.leader >= 0]
                for topic in topics
            }
            missing = sum(len(topic.partitions) - len(found[str(topic.topic)]) for topic in topics)
            if not missing:
                break
        return found

    def _listen(self, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                if cleaned := CLEANED.search(line):
                    self._cleaned.add(cleaned[1] or cleaned[2])
                self._lines.put(line)
        self._lines.put(None)

    def await_line(self, pattern: str, *, timeout_s: int = START_TIMEOUT_S) -> None:
        """Wait until a line of the broker's log matches the pattern; drop all lines up to it."""
        told: list[str] = []
        while True:
            try:
                line = self._lines.get(timeout=timeout_s)
            except queue.Empty:
                line = None
            if line is None:
                self.kill()
                raise AssertionError(f"Kafka never said {pattern!r}:\n" + "".join(told[-40:]))
            told.append(line)
            if re.search(pattern, line):
                return

    def await_cleaning(self, topic: str, end: int, partition: int = 0) -> None:
        """Wait until the log cleaner has cleaned a partition up to `end`, exclusive, durably.

        The cleaner logs a line before it writes the checkpoint. So this also waits for the
        checkpoint: after a kill in between, the old checkpoint would remain.
        """
        self.await_line(rf"cleaned log {topic}-{partition} \(dirty section = \[\d+, {end}\]\)")
        checkpoint = self.log_dir / "cleaner-offset-checkpoint"
        place = [topic, str(partition)]

        def is_noted() -> bool:
            lines = checkpoint.read_text().splitlines() if checkpoint.exists() else []
            rows = [line.rsplit(" ", 2) for line in lines]
            return any(row[:2] == place and int(row[2]) >= end for row in rows)

        until_so(is_noted, f"{topic}-{partition} cleaned to {end} in {checkpoint}")

    def await_cleaned(self, names: Set[str]) -> None:
        """Wait until the log cleaner has cleaned each partition (`topic-number`) at least once.

        The cleaner may start before the broker reports its start, so all lines of the log are
        examined.
        """
        told: list[str] = []
        while missing := names - self._cleaned:
            try:
                line = self._lines.get(timeout=CLEAN_TIMEOUT_S)
            except queue.Empty:
                line = None
            if line is None:
                about = [one for one in told if any(name in one for name in missing)]
                raise AssertionError(f"not cleaned: {sorted(missing)}:\n" + "".join(about[-20:]))
            told.append(line)

    @property
    def pid(self) -> int:
        """Process id of the running broker."""
        assert self._process is not None
        return self._process.pid

    def stop(self) -> None:
        """Shut down in an orderly way: everything is flushed, the clean marker is written."""
        if self._process is not None:
            self._process.terminate()
            self._wait(STOP_TIMEOUT_S)

    def kill(self) -> None:
        """Kill the broker: no flush, no clean marker."""
        if self._process is not None:
            self._process.kill()
            self._wait(STOP_TIMEOUT_S)
            self._write_properties(IMPATIENT)

    def _wait(self, timeout_s: int) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdin.close()
        self._process = None
        self._drain()

    def _drain(self) -> None:
        """Drop the ended process's output, so that the next start does not read these lines."""
        while self._lines.get(timeout=STOP_TIMEOUT_S) is not None:
            pass

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        """Create a topic, and wait until the broker serves the topic.

        `config` has settings by Kafka's names, with underscores for dots.
        """
        settings = {key.replace("_", "."): value for key, value in config.items()}
        topic = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        admin = AdminClient(self.client_config())
        for future in admin.create_topics([topic]).values():
            future.result(timeout=REQUEST_TIMEOUT_S)

        def is_served() -> bool:
            found = admin.list_topics(name, timeout=REQUEST_TIMEOUT_S).topics[name]
            return found.error is None and all(p.leader >= 0 for p in found.partitions.values())

        # The controller knows the topic before the broker reports it.
        until_so(is_served, f"{name}, which was created, is served")
        self._await_leaders(admin, name, range(partitions))

    def await_end(self, topic: str, end: int) -> None:
        """Wait until partition 0 ends at `end`: Kafka writes markers after it has responded."""
        asker, partition = Consumer(self.client_config(group_id="ends")), TopicPartition(topic, 0)

        def is_there() -> bool:
            return asker.get_watermark_offsets(partition, REQUEST_TIMEOUT_S)[1] == end

        until_so(is_there, f"{topic} ends at {end}")
        asker.close()

    def _await_leaders(self, admin: AdminClient, name: str, numbers: Iterable[int]) -> None:
        """Wait until each partition responds, because a named leader might not be ready yet."""
        # The type checker takes this class for abstract, but its constructor returns an instance of
        # a subclass.
        earliest = OffsetSpec(EARLIEST_TIMESTAMP)  # type: ignore[abstract] # see above
        asked = dict.fromkeys((TopicPartition(name, n) for n in numbers), earliest)

        def do_answer() -> bool:
            answers = admin.list_offsets(asked, request_timeout=REQUEST_TIMEOUT_S).values()
            return not any(answer.exception(timeout=REQUEST_TIMEOUT_S) for answer in answers)

        until_so(do_answer, f"the leaders of {name} answer")

    def client_config(self, **more: str | int | float | bool) -> ClientConfig:
        """Return librdkafka settings for this broker; names in `more` have underscores for dots."""
        return client_settings(self.bootstrap, **more)

    def partition_dir(self, topic: str, partition: int = 0) -> Path:
        """Return the folder of a partition's files."""
        return self.log_dir / f"{topic}-{partition}"

    def topic_id(self, topic: str) -> str:
        """Return the topic's id from the broker, because partition.metadata might not exist yet."""
        admin = AdminClient(self.client_config())
        found = admin.describe_topics(TopicCollection([topic]))
        return str(found[topic].result(timeout=REQUEST_TIMEOUT_S).topic_id)
