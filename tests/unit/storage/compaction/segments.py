"""Segments of compacted logs for tests: all kinds of batches, and cleaning jobs."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from uuid import UUID

from hypothesis import strategies as st
from tests.faults.seeded import SeededEnv, seeded_env
from tests.worlds.records.legacy_sets import build_legacy_set

from tidelog.record.batch_walk import Batch, walk
from tidelog.record.builder import build_batch, build_empty_batch, build_end_marker
from tidelog.storage import files, log_files
from tidelog.storage.clocks.append_times import AppendTimes
from tidelog.storage.compaction.job import CleaningJob, CompactionRules, Group, SourceSegment
from tidelog.storage.segment.append_time_trust import fingerprint
from tidelog.storage.segment.txn_index import AbortedTxn
from tidelog.types import Codec, Header, NewRecord, TimestampType

DIRECTORY = "/data/t-0"
TOPIC_ID = UUID(int=9)
NOW_MS = 1_000_000
SEED = bytes(range(16))
VERSION = "v"


@dataclass
class Log:
    """A log that tests build batch by batch."""

    batches: list[bytes] = field(default_factory=list)
    end_offset: int = 0
    aborted: list[AbortedTxn] = field(default_factory=list)
    open_txns: dict[int, int] = field(default_factory=dict)

    def add(self, batch: bytes | bytearray, count: int, *, gap: int = 0) -> None:
        self.batches.append(bytes(batch))
        self.end_offset += count + gap

    def data(
        self,
        records: Sequence[NewRecord],
        *,
        codec: Codec = Codec.NONE,
        append_time_ms: int | None = None,
        producer_id: int = -1,
        transactional: bool = False,
        horizon_ms: int | None = None,
        gap: int = 0,
    ) -> None:
        if transactional:
            self.open_txns.setdefault(producer_id, self.end_offset)
        stamped = append_time_ms is not None
        batch = build_batch(
            records,
            base_offset=self.end_offset,
            leader_epoch=3,
            codec=codec,
            timestamp_type=TimestampType(int(stamped)),
            append_time_ms=append_time_ms,
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 1,
            base_sequence=-1 if producer_id < 0 else 7,
            transactional=transactional,
            delete_horizon_ms=horizon_ms,
            last_offset_delta=len(records) - 1 + gap,
            default_timestamp=5,
        )
        self.add(batch, len(records), gap=gap)

    def marker(self, producer_id: int, *, commit: bool) -> None:
        offset = self.end_offset
        batch = build_end_marker(
            commit=commit,
            producer_id=producer_id,
            producer_epoch=1,
            coordinator_epoch=0,
            timestamp=9,
            base_offset=offset,
            leader_epoch=3,
        )
        first = self.open_txns.pop(producer_id, None)
        if first is not None and not commit:
            self.aborted.append(AbortedTxn(producer_id, first, offset, 0))
        self.add(batch, 1)

    def empty(self, producer_id: int, count: int) -> None:
        batch = build_empty_batch(
            base_offset=self.end_offset,
            last_offset=self.end_offset + count - 1,
            max_timestamp=8,
            leader_epoch=3,
            producer_id=producer_id,
            producer_epoch=1,
            base_sequence=3,
        )
        self.add(batch, count)

    def legacy(
        self,
        records: Sequence[NewRecord],
        *,
        magic: int,
        codec: Codec,
        append_time_ms: int | None = None,
    ) -> None:
        batch = build_legacy_set(
            records,
            magic=magic,
            codec=codec,
            base_offset=self.end_offset,
            append_time_ms=append_time_ms,
        )
        for message in walk(bytes(batch)):
            self.batches.append(bytes(message.view))
        self.end_offset += len(records)


def views(batches: Sequence[bytes]) -> list[Batch]:
    """Return a view of each batch."""
    return list(walk(b"".join(batches)))


def write_log(
    env: SeededEnv, log: Log, sizes: Sequence[int], *, mtimes: Sequence[int] = ()
) -> list[SourceSegment]:
    """Write segments with these numbers of batches, and a last segment with the other batches."""
    env.files.make_dirs(DIRECTORY)
    found, start = [], 0
    base = 0
    for number, size in enumerate([*sizes, len(log.batches)]):
        batches = log.batches[start : start + size]
        start += len(batches)
        if not batches:
            break
        last = views(batches)[-1].last_offset
        end = log.end_offset if start >= len(log.batches) else last + 1
        mtime = mtimes[number] if number < len(mtimes) else NOW_MS
        found.append(write_segment(env, base, end, batches, mtime_ms=mtime))
        base = end
    return found


def write_segment(
    env: SeededEnv, base: int, end: int, batches: Sequence[bytes], *, mtime_ms: int = NOW_MS
) -> SourceSegment:
    """Write one segment with append times; each batch's time is computed from its last offset."""
    data = b"".join(batches)
    put(env, base, log_files.LOG_SUFFIX, data)
    env.files.set_mtime(path(base, log_files.LOG_SUFFIX), mtime_ms)
    times = AppendTimes(base, TOPIC_ID)
    last = 0
    for batch in views(batches):
        last = batch.last_offset + 1
        times.note(batch.base_offset, append_ms(batch), fingerprint(batch))
    times.close(last)
    put(env, base, log_files.APPEND_TIME_SUFFIX, times.encode())
    return SourceSegment(
        base_offset=base,
        end_offset=end,
        size_bytes=len(data),
        last_modified_ms=mtime_ms,
        append_end=end,
    )


def append_ms(batch: Batch) -> int:
    """Return the append time of a batch of a test log."""
    return 1000 + 10 * batch.last_offset


def path(base: int, suffix: str) -> str:
    """Return the path of a segment's file."""
    return f"{DIRECTORY}/{log_files.file_name(base, suffix)}"


def put(env: SeededEnv, base: int, suffix: str, data: bytes) -> None:
    """Write a file, or replace its content."""
    file = env.files.open(path(base, suffix), create=True)
    file.truncate(0)
    files.write_fully(file, data, 0)
    file.close()


def read(env: SeededEnv, base: int, suffix: str) -> bytes:
    """Return a file's bytes."""
    return files.read_file(env.files, path(base, suffix))


def make_job(
    sources: Sequence[SourceSegment],
    *,
    map_from: int = 0,
    groups: Sequence[Group] | None = None,
    aborted: Sequence[AbortedTxn] = (),
    rules: CompactionRules | None = None,
    **changes: object,
) -> CleaningJob:
    """Create a job that cleans all sources, in one group by default."""
    if groups is None:
        groups = [Group(bases=tuple(s.base_offset for s in sources), drop_expired=True)]
    job = CleaningJob(
        directory=DIRECTORY,
        topic="t",
        partition=0,
        topic_id=TOPIC_ID,
        sources=tuple(sources),
        groups=tuple(groups),
        map_from=map_from,
        map_to=sources[-1].end_offset,
        log_start_offset=0,
        upper_bound_offset=sources[-1].end_offset + 100,
        now_ms=NOW_MS,
        rules=rules or small_rules(),
        aborted=tuple(aborted),
        seed=SEED,
    )
    return replace(job, **changes)  # type: ignore[arg-type] # fields by name


def small_rules(**changes: object) -> CompactionRules:
    """Return rules with the smallest offset map."""
    rules = CompactionRules(dedupe_buffer_bytes=1 << 20, delete_retention_ms=100)
    return replace(rules, **changes)  # type: ignore[arg-type] # fields by name


keys = st.sampled_from((b"", b"a", b"b", b"c", b"key-number-four", b"d" * 40)) | st.none()
values = st.none() | st.binary(max_size=3) | st.binary(min_size=130, max_size=140)
versions = st.lists(
    st.one_of(
        st.builds(
            Header,
            st.just(VERSION),
            st.integers(-2, 3).map(lambda n: n.to_bytes(8, "big", signed=True)),
        ),
        st.builds(
            Header, st.sampled_from((VERSION, "w", "")), st.sampled_from((None, b"", b"1234567"))
        ),
    ),
    max_size=2,
).map(tuple)
records = st.lists(
    st.builds(
        NewRecord,
        key=keys,
        value=values,
        timestamp=st.integers(-1, 6) | st.sampled_from((NOW_MS, 1 << 40)),
        headers=st.just(()) | versions,
    ),
    min_size=1,
    max_size=7,
)
codecs = st.sampled_from((Codec.NONE, Codec.NONE, *Codec))


@st.composite
def logs(draw: st.DrawFn, *, legacy: bool = True) -> Log:
    """Draw a log with batches of all kinds."""
    log = Log()
    kinds = ["data", "data", "data", "stamped", "txn", "txn", "end", "horizon", "empty"]
    if legacy:
        log_legacy = draw(st.integers(0, 2))
        for _ in range(log_legacy):
            magic = draw(st.sampled_from((0, 1)))
            codec = draw(st.sampled_from((Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)))
            plain = [replace(record, headers=()) for record in draw(records)]
            stamp = draw(st.none() | st.integers(0, 9)) if magic else None
            log.legacy(plain, magic=magic, codec=codec, append_time_ms=stamp)
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=12)):
        producer_id = draw(st.sampled_from((4, 5)))
        match kind:
            case "data":
                log.data(draw(records), codec=draw(codecs), gap=draw(st.integers(0, 2)))
            case "stamped":
                log.data(draw(records), codec=draw(codecs), append_time_ms=draw(st.integers(0, 9)))
            case "horizon":
                horizon = draw(st.sampled_from((NOW_MS - 1, NOW_MS, NOW_MS + 1)))
                log.data(draw(records), codec=draw(codecs), horizon_ms=horizon)
            case "txn":
                log.data(
                    draw(records), codec=draw(codecs), producer_id=producer_id, transactional=True
                )
            case "end":
                log.marker(producer_id, commit=draw(st.booleans()))
            case _:
                log.empty(6, draw(st.integers(1, 3)))
    for producer_id in list(log.open_txns):
        log.marker(producer_id, commit=draw(st.booleans()))
    return log


def new_env() -> SeededEnv:
    """Return an environment with an empty disk."""
    return seeded_env(1)


def record(key: int | str, value: str | None = "v", timestamp: int = 7) -> NewRecord:
    return NewRecord(
        key=str(key).encode(),
        value=None if value is None else value.encode(),
        timestamp=timestamp,
    )


def names(env: SeededEnv) -> list[str]:
    found = [entry.name for entry in env.files.list_dir(DIRECTORY)]
    return [name for name in found if log_files.CLEANED_SUFFIX in name]


def make_log(batches: int = 30, keys: int = 17, codec: Codec = Codec.NONE) -> Log:
    log, numbers = Log(), count()
    for _ in range(batches):
        log.data([record((7 * next(numbers)) % keys, "v" * 40) for _ in range(5)], codec=codec)
    return log
