"""From `tidelog.broker()` to the first record that a consumer group reads: what a test waits for.

Each client reads one record that is there already, from the first broker of a process and from its
twentieth. The client itself is imported before; of a first broker its own modules are not.
"""

import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from typing import Final

from bench.harness import Case

_GOAL_MS: Final = 300
_NTH: Final = 20
_CLIENTS: Final = ("confluent-kafka", "aiokafka", "kafka-python")
# In a process of its own: brokers of one process share what the first one has imported.
_PROGRAM: Final = """
import asyncio, sys, time
import tidelog
from tidelog.types import NewRecord

name, brokers = sys.argv[1], int(sys.argv[2])
if name == "confluent-kafka":
    from confluent_kafka import Consumer
    def read(address):
        settings = {"bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "earliest"}
        consumer = Consumer(settings)
        consumer.subscribe(["t"])
        while (message := consumer.poll(30)) is None or message.error():
            pass
        yield
        consumer.close()
elif name == "kafka-python":
    from kafka import KafkaConsumer
    def read(address):
        consumer = KafkaConsumer(
            "t", bootstrap_servers=address, group_id="g", auto_offset_reset="earliest"
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
                "t", bootstrap_servers=address, group_id="g", auto_offset_reset="earliest"
            )
            await consumer.start()
            await consumer.getone()
            return consumer
        consumer = loop.run_until_complete(begin())
        yield
        loop.run_until_complete(consumer.stop())
        loop.close()

for _ in range(brokers):
    began = time.perf_counter()
    with tidelog.broker() as broker:
        def fill(node):
            node.topics.create("t")
            partition = node.partitions.get("t", 0)
            partition.log.append([NewRecord(value=b"v")])
            partition.advance()
        broker.call(fill)
        reading = read(broker.bootstrap_servers)
        next(reading)
        took = time.perf_counter() - began
        next(reading, None)
print(took * 1000)
"""


def _first_record_ms(client: str, brokers: int) -> float:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, client, str(brokers)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def cases(quick: bool) -> Iterator[Case]:
    """Each client, at the first broker of a process and at a later one."""
    for brokers in (1, 3 if quick else _NTH):
        for client in _CLIENTS:
            yield Case(
                case=f"first record of a group, broker {brokers} of a process, {client}",
                unit="ms to the first record",
                ours=partial(_first_record_ms, client, brokers),
                goal=f"ours <= {_GOAL_MS}",
                note="a goal for a quiet machine; a first broker imports its modules meanwhile",
            )
