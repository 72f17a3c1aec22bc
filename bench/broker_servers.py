"""Runs the two brokers as processes, and measures them from outside through /proc.

Apache Kafka runs with the JVM options of its own start scripts, its default numbers of threads, and
the pinned jars as class path. tidelog is started by its command line. The module needs Linux.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Protocol

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.worlds.kafka.broker import Broker, free_port
from tests.worlds.kafka.home import KafkaHome
from tests.worlds.kafka.oracle import Oracle

from bench import broker_wire as wire
from bench.broker_load import Address, ask
from tidelog.config.broker import STANDARD_AUTHORIZER

# Options of bin/kafka-server-start.sh and kafka-run-class.sh in Kafka's release.
KAFKA_JVM: Final = (
    *("-Xmx1G", "-Xms1G", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    *("-XX:MaxInlineLevel=15", "-Djava.awt.headless=true"),
)
KAFKA_SETTINGS: Final = {
    "num.network.threads": "3",
    "num.io.threads": "8",
    "background.threads": "10",
    "auto.create.topics.enable": "true",
    "log.segment.bytes": str(1 << 30),
    # Kafka's defaults. In the tests, Kafka runs with fewer partitions of __consumer_offsets and
    # __transaction_state, and checks more often for timed-out transactions.
    "offsets.topic.num.partitions": "50",
    "transaction.state.log.num.partitions": "50",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "10000",
}
# tidelog's settings; the Kafka broker gets the same two values. With these values, a broker does
# not wait for more members before it changes a group.
OUR_SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
}
START_TIMEOUT_S: Final = 60
STOP_TIMEOUT_S: Final = 60
ADMIN_TIMEOUT_S: Final = 30
POLL_S: Final = 0.002
SAMPLE_S: Final = 0.05


class Served(Protocol):
    """A broker in its own processes."""

    @property
    def bootstrap(self) -> str: ...

    @property
    def pid(self) -> int: ...

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Ours:
    """Process of `tidelog serve`, with default settings except for `OUR_SETTINGS`."""

    def __init__(
        self, folder: Path, *, certificate: Path | None = None, users: Path | None = None
    ) -> None:
        """Choose ports and settings; `start` starts the process.

        Args:
            folder: Folder for the broker's files.
            certificate: PEM file with key and certificate of a second listener, for TLS.
            users: File of the users of a second listener, which requires authentication.
        """
        self._data = folder / "data"
        self._process: subprocess.Popen[str] | None = None
        self._port = free_port()
        self.tls_port = free_port()
        self.sasl_port = free_port()
        self._settings = OUR_SETTINGS | {"listeners": f"PLAINTEXT://{self.bootstrap}"}
        if certificate is not None:
            self._settings = with_tls(self._settings, self.tls_port, certificate)
        if users is not None:
            self._settings = with_log_in(self._settings, self.sasl_port, users)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the process; `await_served` waits until it serves requests."""
        command = Path(sys.executable).with_name("tidelog")
        settings = [f"--set={name}={value}" for name, value in self._settings.items()]
        self._process = subprocess.Popen(
            [command, "serve", "--data", self._data, *settings],
            stdout=subprocess.DEVNULL,
            text=True,
            # Lets Python cache compiled modules, as it does for an installed package.
            env={k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"},
        )

    def stop(self) -> None:
        """Stop the process cleanly; kills it after a timeout."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None


class Kafka(Broker):
    """Apache Kafka with the options of its own scripts."""

    def __init__(
        self, home: KafkaHome, oracle: Oracle, folder: Path, *, certificate: Path | None = None
    ) -> None:
        """`certificate` is a PEM file with key and certificate of a second listener, for TLS."""
        self.tls_port = free_port()
        self._certificate = certificate
        super().__init__(home, oracle, folder, settings=KAFKA_SETTINGS, jvm=KAFKA_JVM)

    def _write_properties(self, more: Mapping[str, str]) -> None:
        if self._certificate is not None:
            self._settings = with_tls(self._settings, self.tls_port, self._certificate)
            self._certificate = None
        super()._write_properties(more)


def with_tls(settings: Mapping[str, str], port: int, certificate: Path) -> dict[str, str]:
    """Return the settings with an additional listener for TLS."""
    place = f"SSL://127.0.0.1:{port}"
    changed = {
        name: f"{settings[name]},{place}"
        for name in ("listeners", "advertised.listeners")
        if name in settings
    }
    changed["listener.security.protocol.map"] = "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL"
    changed |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(certificate)}
    return dict(settings) | changed


def with_log_in(settings: Mapping[str, str], port: int, users: Path) -> dict[str, str]:
    """Return the settings with an authorizer and an additional listener with authentication."""
    return dict(settings) | {
        "listeners": f"{settings['listeners']},SASL_PLAINTEXT://127.0.0.1:{port}",
        "sasl.enabled.mechanisms": "PLAIN",
        "tidelog.sasl.plain.users.file": str(users),
        "authorizer.class.name": STANDARD_AUTHORIZER,
        "super.users": "User:ANONYMOUS",
    }


def address_of(server: Served) -> Address:
    """Return the host and port of a broker."""
    host, _, port = server.bootstrap.rpartition(":")
    return host, int(port)


def await_served(server: Served) -> None:
    """Wait until the broker's response to Metadata contains a broker."""
    deadline = time.perf_counter() + START_TIMEOUT_S
    while time.perf_counter() < deadline:
        try:
            answer = ask(address_of(server), wire.metadata())
        except OSError:
            time.sleep(POLL_S)
            continue
        # Correlation id, tags and throttle time take 9 bytes. The next byte is the number of
        # brokers + 1.
        if answer[9] > 1:
            return
    raise TimeoutError(f"{type(server).__name__} answered no request within {START_TIMEOUT_S} s")


def processes_of(pid: int) -> list[int]:
    """Return the ids of a process and of all its descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(entry.parent.name)] = int(fields[1])
    found = [pid]
    for process in found:
        found += [child for child, parent in parents.items() if parent == process]
    return found


def cpu_s(pid: int) -> float:
    """Return the CPU seconds of a broker's processes so far, from the scheduler's counters."""
    total = 0
    for process in processes_of(pid):
        for task in Path(f"/proc/{process}/task").iterdir():
            try:
                total += int((task / "schedstat").read_text().split()[0])
            except OSError:
                continue
    return total / 1e9


def memory_bytes(pid: int) -> int:
    """Return the proportional set size of a broker's processes: shared pages count once."""
    total = 0
    for process in processes_of(pid):
        for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


class MemoryWatch:
    """Context manager that records the largest `memory_bytes` of a process while its block runs."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.peak_bytes = 0

    def _watch(self) -> None:
        while True:
            self.peak_bytes = max(self.peak_bytes, memory_bytes(self._pid))
            if self._over.wait(SAMPLE_S):
                return

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()


class Topics:
    """Creates and deletes topics of a running broker."""

    def __init__(self, server: Served) -> None:
        self._server = server
        self._admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 2})

    def create(self, name: str, partitions: int, **config: str) -> None:
        """Create a topic; returns when each partition has a leader."""
        settings = {key.replace("_", "."): value for key, value in config.items()}
        wanted = NewTopic(name, num_partitions=partitions, replication_factor=1, config=settings)
        for future in self._admin.create_topics([wanted]).values():
            future.result(timeout=ADMIN_TIMEOUT_S)
        for partition in range(partitions):
            self._await_leader(name, partition)

    def _await_leader(self, name: str, partition: int) -> None:
        deadline = time.perf_counter() + ADMIN_TIMEOUT_S
        request = wire.list_offsets(name, -1, partition)
        while wire.listed(ask(address_of(self._server), request), name)[0]:
            if time.perf_counter() > deadline:
                raise TimeoutError(f"{name}-{partition} has no leader")
            time.sleep(POLL_S)

    def drop(self, name: str) -> None:
        """Delete a topic."""
        for future in self._admin.delete_topics([name]).values():
            future.result(timeout=ADMIN_TIMEOUT_S)


def scratch() -> "tempfile.TemporaryDirectory[str]":
    """Return a temporary folder for a broker's files, on the disk that TMPDIR names."""
    return tempfile.TemporaryDirectory(prefix="tidelog-bench-", ignore_cleanup_errors=True)
