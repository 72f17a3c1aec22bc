"""Compares brute-force compaction with Apache Kafka 4.3's cleaner, on the same head of a keyed log.

The head consists of records that were never cleaned. Each record has 200 bytes; keys are uniform.
Kafka's cleaner runs in a real broker with one cleaner thread, the same memory for its map and no
throttle. The segments are put into the topic's directory before the broker starts. When the broker
is idle, the topic's `cleanup.policy` is changed to `compact`. Kafka's figure is the CPU time of the
broker's process from the change of the setting until the cleaner logs that it has finished, minus
the CPU time that the idle broker would use in this time. tidelog's cleaner runs in its own process.
tidelog's figure does not include the start of this process; the time to load tidelog's kernels is a
separate figure.

The cases of the generational strategy (bench/generations.py) follow.
"""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from tests.worlds.kafka.broker import Broker
from tests.worlds.kafka.home import Unavailable, kafka_home
from tests.worlds.kafka.oracle import Oracle

from bench.broker_pair import figure
from bench.broker_servers import KAFKA_JVM, KAFKA_SETTINGS, cpu_s, scratch
from bench.compaction_logs import START_MS, job_of, write_head
from bench.generations import cases_of as generational
from bench.harness import Case
from tidelog.record.builder import build_batch
from tidelog.storage import log_files
from tidelog.storage.compaction.job import CleaningJob, CompactionRules
from tidelog.types import Codec, NewRecord

MAP_BYTES: Final = 128 << 20
ROUNDS: Final = 3
ROUNDS_QUICK: Final = 1
IDLE_S: Final = 5.0
WAIT_S: Final = 30
CLEANING_TIMEOUT_S: Final = 600
SETTINGS: Final = {
    "log.cleaner.dedupe.buffer.size": str(MAP_BYTES),
    "log.cleaner.io.buffer.size": "524288",
    "log.cleaner.backoff.ms": "100",
    "log.cleaner.threads": "1",
}


@dataclass(frozen=True, slots=True)
class Size:
    """Size of the head, and number of rounds."""

    records: int
    keys: int
    rounds: int
    goals: bool


FULL: Final = Size(10_000_000, 1_000_000, ROUNDS, goals=True)
QUICK: Final = Size(1_000_000, 100_000, ROUNDS_QUICK, goals=False)


def cases(quick: bool) -> Iterator[Case]:
    """Yield cases of brute force against Kafka, then of generational compaction."""
    yield from _brute_force(quick)
    yield from generational(quick)


def _brute_force(quick: bool) -> Iterator[Case]:
    """Yield cases of uncompressed and of lz4 batches; they have no rival if Kafka is missing."""
    size = QUICK if quick else FULL
    with ExitStack() as stack:
        folder = Path(stack.enter_context(scratch()))
        try:
            home = kafka_home()
            oracle = stack.enter_context(Oracle(home))
        except Unavailable as missing:
            print(f"no comparison: {missing}", file=sys.stderr)
            for codec in (Codec.NONE, Codec.LZ4):
                yield from _cases(folder / codec.config_name, size, codec, None)
            return
        for codec, goal in ((Codec.NONE, 6), (Codec.LZ4, 3)):
            place = folder / codec.config_name
            settings = KAFKA_SETTINGS | SETTINGS
            broker = Broker(home, oracle, place / "kafka", settings=settings, jvm=KAFKA_JVM)
            stack.callback(broker.kill)
            yield from _cases(place, size, codec, broker, goal=goal)
            broker.kill()


def _cases(
    place: Path, size: Size, codec: Codec, broker: Broker | None, *, goal: int = 0
) -> Iterator[Case]:
    folder = place / "head-0"
    job = job_of(
        folder,
        write_head(folder, size.records, size.keys, codec),
        CompactionRules(dedupe_buffer_bytes=MAP_BYTES),
    )
    path = place / "job.json"
    path.write_text(job.to_json())
    ours = [_clean_ours(path) for _ in range(size.rounds)]
    kafka_s = None if broker is None else _clean_kafka(broker, job)
    rate = size.records / median(run["cpu_s"] for run in ours)
    what = f"{size.records / 1e6:.0f} M records of 200 bytes, {size.keys:,} keys"
    what = f"{what}, {codec.config_name}"
    rival = None if kafka_s is None else (lambda: size.records / kafka_s)
    yield figure(
        f"brute force, {what}",
        "records per CPU-s",
        lambda: rate,
        rival,
        goal=f"ratio >= {goal}" if goal and size.goals else "",
        note=f"{ours[0]['left']:.0f} records left, {ours[0]['bytes_read'] / 1e6:.0f} MB read",
    )
    loading_s = median(run["loading_s"] for run in ours)
    yield figure(f"loading kernels, {codec.config_name}", "CPU-s", lambda: loading_s, None)
    memory = max(run["peak_bytes"] - run["base_bytes"] for run in ours)
    limit = MAP_BYTES + 200_000_000
    yield figure(
        f"memory above a loaded process, {what}",
        "bytes",
        lambda: memory,
        None,
        goal=f"ours <= {limit}",
        note=f"the map alone is {MAP_BYTES} bytes; {ours[0]['base_bytes'] / 1e6:.0f} MB are"
        " resident before",
    )


def _clean_ours(job: Path) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.compaction_ours", str(job)],
        check=True,
        capture_output=True,
        text=True,
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def _clean_kafka(broker: Broker, job: CleaningJob) -> float:
    """Return the CPU seconds that Kafka's cleaner uses for the job's segments."""
    broker.start()
    broker.create_topic("head", cleanup_policy="delete", retention_ms="-1")
    broker.stop()
    target = broker.partition_dir("head")
    for path in target.glob("0*"):
        path.unlink()
    for source in job.sources:
        name = log_files.log_file_name(source.base_offset)
        (target / name).hardlink_to(Path(job.directory) / name)
    end = job.sources[-1].end_offset
    active = build_batch([NewRecord(key=b"last", value=b"", timestamp=START_MS)], base_offset=end)
    (target / log_files.log_file_name(end)).write_bytes(active)
    broker.start()
    time.sleep(IDLE_S)
    idle_s, idle_from = cpu_s(broker.pid), time.perf_counter()
    time.sleep(IDLE_S)
    idle_rate = (cpu_s(broker.pid) - idle_s) / (time.perf_counter() - idle_from)
    before_s, started = cpu_s(broker.pid), time.perf_counter()
    _make_compacted(broker)
    broker.await_line(
        rf"cleaned log head-0 \(dirty section = \[0, {end}\]\)", timeout_s=CLEANING_TIMEOUT_S
    )
    used_s, lasted_s = cpu_s(broker.pid) - before_s, time.perf_counter() - started
    broker.stop()
    return used_s - idle_rate * lasted_s


def _make_compacted(broker: Broker) -> None:
    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, "head", incremental_configs=[entry])
    admin = AdminClient(broker.client_config())
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(timeout=WAIT_S)
