"""A directory with one topic, and segments staged for this topic, for tests of attaching."""

from collections.abc import Sequence

from tests.faults.seeded import START_MS

from tidelog.env import Env
from tidelog.record.builder import build_batch
from tidelog.storage.directory.attach import AttachResult, attach
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.directory.staging import RowFacts, StagedSegment, StagedWriter
from tidelog.storage.open_files import FilePool
from tidelog.types import Codec, NewRecord, TopicPartition

ROOT = "/data"
TOPIC = "tides"
CONFIG = {"internal.segment.bytes": "600", "index.interval.bytes": "100"}
WRITABLE = LogDirOptions(writable=True)
T0 = START_MS


def make_directory(env: Env, *, partitions: int = 2, config: dict[str, str] | None = None) -> None:
    with LogDir.open(ROOT, env=env, options=LogDirOptions(create=True)) as log_dir:
        log_dir.create_topic(TOPIC, partitions=partitions, config={**CONFIG, **(config or {})})
        for number in range(partitions):
            log_dir.log(TOPIC, number).append([NewRecord(key=b"old", value=b"%d" % number)])


def new_records(label: str, count: int) -> list[NewRecord]:
    return [
        NewRecord(key=b"%d" % n, value=f"{label}-{n}".encode(), timestamp=T0 + n)
        for n in range(count)
    ]


def stage(
    env: Env,
    partition: int,
    label: str,
    count: int = 30,
    *,
    order: tuple[int, ...] = (0,),
    codec: Codec = Codec.NONE,
    batch_records: int = 4,
    topic: str = TOPIC,
) -> list[StagedSegment]:
    """Stage small batches as one task does, in as many segments as the batches need."""
    with LogDir.open(ROOT, env=env) as log_dir:
        config = log_dir.topic(topic).config
    pool = FilePool(env.files)
    name = TopicPartition(topic, partition)
    writer = StagedWriter(pool, ROOT, name, config, name=label, order=order)
    records = new_records(label, count)
    for at in range(0, count, batch_records):
        group = records[at : at + batch_records]
        writer.append([build_batch(group, codec=codec)], RowFacts(min_timestamp=T0 + at))
    staged = writer.finish(env.clock.now_ms())
    pool.close()
    return staged


def values(env: Env, partition: int) -> list[bytes | None]:
    with LogDir.open(ROOT, env=env) as log_dir:
        return [record.value for record in log_dir.reader(TOPIC, partition).records()]


def expected(partition: int, label: str, count: int = 30) -> list[bytes]:
    return [b"%d" % partition, *(f"{label}-{n}".encode() for n in range(count))]


def attach_all(env: Env, staged: Sequence[StagedSegment]) -> AttachResult:
    with LogDir.open(ROOT, env=env, options=WRITABLE) as log_dir:
        return attach(log_dir, staged)


def staged_names(env: Env) -> list[str]:
    return [
        item.name
        for number in range(2)
        if env.files.exists(f"{ROOT}/{TOPIC}-{number}")
        for item in env.files.list_dir(f"{ROOT}/{TOPIC}-{number}")
        if ".sta" in item.name
    ]
