"""Time from `tidelog.broker()` to the first record that a consumer group reads, as in a test.

Each client reads one existing record from the first broker that a process starts, and from the
twentieth broker (with `--quick`, the third). The client is imported before the clock starts. The
time of the first broker includes the import of the broker's modules.
"""

import atexit
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Final

from bench.harness import Case

_GOAL_MS: Final = 300
_NTH: Final = 20
_CLIENTS: Final = ("confluent-kafka", "aiokafka", "kafka-python")
# This program runs in its own process, because all brokers in a process share imported modules.
_PROGRAM: Final = """
import asyncio, os, sys, time
import tidelog
from tidelog.types import NewRecord

name, brokers = sys.argv[1], int(sys.argv[2])
group = f"g-{os.getpid()}"  # a new group, which has committed no offsets
if name == "confluent-kafka":
    from confluent_kafka import Consumer
    def read(address):
        consumer = Consumer({
            "bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"
        })
        consumer.subscribe(["t"])
        while (message := consumer.poll(30)) is None or message.error():
            pass
        yield
        consumer.close()
elif name == "kafka-python":
    from kafka import KafkaConsumer
    def read(address):
        consumer = KafkaConsumer(
            "t", bootstrap_servers=address, group_id=group, auto_offset_reset="earliest"
        )
        next(iter(consumer))
        yield
        consumer.close()
else:
    from aiokafka import AIOKafkaConsumer
    def read(address):
        loop = asyncio.new_event_loop()
        async def begin():
            consumer = AIOKafkaConsumer(
                "t", bootstrap_servers=address, group_id=group, auto_offset_reset="earliest"
            )
            await consumer.start()
            await consumer.getone()
            return consumer
        consumer = loop.run_until_complete(begin())
        yield
        loop.run_until_complete(consumer.stop())
        loop.close()

def fill(node):
    node.log_dir.create_topic("t")
    partition = node.partitions.get("t", 0)
    partition.log.append([NewRecord(value=b"v")])
    partition.advance()

if brokers == 0:  # serve other processes until stdin ends
    with tidelog.broker() as broker:
        broker.call(fill)
        reading = read(broker.bootstrap_servers)
        next(reading)
        next(reading, None)
        print(broker.bootstrap_servers, flush=True)
        sys.stdin.read()
    sys.exit()
if brokers < 0:  # read from a warm broker in another process
    wall, cpu = time.perf_counter(), time.process_time()
    next(read(sys.argv[3]))
    print((time.perf_counter() - wall) * 1000, (time.process_time() - cpu) * 1000, flush=True)
    os._exit(0)
for _ in range(brokers):
    wall, cpu = time.perf_counter(), time.process_time()
    with tidelog.broker() as broker:
        broker.call(fill)
        reading = read(broker.bootstrap_servers)
        next(reading)
        told = (time.perf_counter() - wall) * 1000, (time.process_time() - cpu) * 1000
        next(reading, None)
print(*told)
"""


def _run(client: str, brokers: int, *more: str) -> tuple[float, float]:
    """Return the elapsed time and CPU time, in ms, to the first record of the last broker."""
    command = [sys.executable, "-c", _PROGRAM, client, str(brokers), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=_environment())
    wall_ms, cpu_ms = map(float, done.stdout.split())
    return wall_ms, cpu_ms


def _wall_ms(client: str, brokers: int) -> float:
    return _run(client, brokers)[0]


def _process_ms(client: str, brokers: int) -> float:
    return _run(client, brokers)[1]


def _environment() -> dict[str, str]:
    """Return the environment of a user, in which Python caches compiled modules."""
    return {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}


class _Warm:
    """Broker that has already served a group of the client; runs in another process."""

    def __init__(self, client: str) -> None:
        self._client = client
        self._process: subprocess.Popen[str] | None = None
        self._address = ""

    def wall_ms(self) -> float:
        """Return the client's time to the first record, in ms; the first call starts the broker."""
        if self._process is None:
            command = [sys.executable, "-c", _PROGRAM, self._client, "0"]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=_environment(),
            )
            assert self._process.stdout is not None
            self._address = self._process.stdout.readline().strip()
            atexit.register(self._process.communicate)
        return _run(self._client, -1, self._address)[0]


def cases(quick: bool) -> Iterator[Case]:
    """Yield the cases of each client, with the first broker of a process and with a later one."""
    for client in _CLIENTS:
        yield Case(
            case=f"first record of a group, first broker in a process, {client}",
            unit="ms to the first record",
            ours=partial(_wall_ms, client, 1),
            rival=_Warm(client).wall_ms,
            rival_name="the same client, with a warm broker in another process",
            goal=f"ours <= {_GOAL_MS}",
            note="a goal for a quiet machine; includes the import of the broker's modules",
        )
        yield Case(
            case=f"CPU to the first record, first broker in a process, {client}",
            unit="CPU ms to the first record",
            ours=partial(_process_ms, client, 1),
            note="CPU time of the whole process with the client's threads, not of other programs",
        )
    later, ordinal = (3, "3rd") if quick else (_NTH, f"{_NTH}th")
    for client in _CLIENTS:
        yield Case(
            case=f"first record of a group, {ordinal} broker in a process, {client}",
            unit="ms to the first record",
            ours=partial(_wall_ms, client, later),
            goal=f"ours <= {_GOAL_MS}",
            note="a goal for a quiet machine",
        )
