"""A log and its model run the same steps; everything is compared after each step.

After each step the log, and a reader of its files, must have the model's records at their offsets.
On each clock, lookups by time and reads of a time range must give the same result as a full scan of
the model. The lookups are drawn from a separate seed; Hypothesis draws only the steps.
"""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar, TypeAlias

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.faults import SeededEnv, reopen, seeded_env
from tests.faults.refused import opened
from tests.property.log_model import UNKNOWN, Model, Span

from tidelog.config import RetentionClock
from tidelog.env import FileSystem
from tidelog.scan import ReadOptions, RequestedRange, plan, to_table
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_reader import LogView
from tidelog.storage.log.segment_times import read_times
from tidelog.storage.segment.segment import Segment
from tidelog.types import INT64_MAX, ClockName, Codec, NewRecord, OffsetAndTimestamp

PATH = "/data"
PARTITION = f"{PATH}/t-0"
DAY_MS = 86_400_000
HOUR_MS = 3_600_000
# Times near the clock's time, equal times, no time, 0, and a very large time.
TIMESTAMPS = st.one_of(
    st.integers(min_value=-20_000, max_value=20_000).map(lambda delta: ("near", delta)),
    st.sampled_from([("fixed", -1), ("fixed", 0), ("fixed", 2**62), ("near", 0)]),
)
ANY_TIME = {"message.timestamp.after.max.ms": str(INT64_MAX)}
LOOKUPS_PER_STEP = 6
Configs: TypeAlias = tuple[Mapping[str, str], ...]
DAMAGES = ("remove", "empty", "zeros", "tail of zeros", "torn", "noise", "other segment's")


class LogMachine(RuleBasedStateMachine):
    """Runs the steps on a log and its model; a subclass defines the settings."""

    CONFIGS: ClassVar[Configs] = ({},)
    USES_KERNELS: ClassVar[bool] = False

    @initialize(data=st.data(), seed=st.integers(0, 1000))
    def begin(self, data: st.DataObject, seed: int) -> None:
        """Create a directory with one topic."""
        config = data.draw(st.sampled_from(self.CONFIGS))
        self.env: SeededEnv = seeded_env(seed)
        self.dice = random.Random(seed)
        self.model = Model()
        self.stamps = config.get("message.timestamp.type") == "LogAppendTime"
        self.retention_ms = int(config.get("retention.ms", "-1"))
        self.retention_clock = RetentionClock(
            config.get("tidelog.retention.clock", "record-capped")
        )
        self.has_crashed = False
        self.is_always_durable = "flush.messages" in config
        self.directory = self._open()
        self.directory.create_topic("t", config={"retention.ms": "-1", **ANY_TIME, **config})
        self.values = 0
        self.given_out: set[int] = set()

    def _open(self) -> LogDir:
        options = LogDirOptions(create=True)
        return opened(lambda: LogDir.open(PATH, env=self.env, options=options), if_hard=True)

    @property
    def log(self) -> Log:
        """The log under test; its first use opens and recovers it."""
        return self.directory.log("t", 0)

    # -- steps -------------------------------------------------------------------------------

    @rule(
        times=st.lists(TIMESTAMPS, min_size=1, max_size=6),
        codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4, Codec.ZSTD]),
        batch_bytes=st.sampled_from([1, 60, 10_000]),
    )
    def append(self, times: list[tuple[str, int]], codec: Codec, batch_bytes: int) -> None:
        """Append records with any timestamps, in one batch or several."""
        now = self.env.clock.now_ms()
        given = [max(now + value, 0) if kind == "near" else value for kind, value in times]
        values = [b"%d" % (self.values + number) for number in range(len(given))]
        self.values += len(given)
        records = [
            NewRecord(key=b"k", value=value, timestamp=time)
            for value, time in zip(values, given, strict=True)
        ]
        result = self.log.append(records, codec=codec, batch_bytes=batch_bytes)
        self._judge_append_time(result.append_time_ms, now)
        for value, time in zip(values, given, strict=True):
            seen = result.append_time_ms if self.stamps else time
            self.model.add(seen, result.append_time_ms, value)
        assert result.last_offset == self.model.log_end - 1
        if self.is_always_durable:
            self.model.durable_end = self.model.log_end

    def _judge_append_time(self, append_ms: int, now: int) -> None:
        """Assert that an append time is the clock's time, or a later one that was already used."""
        last = max((entry.append_ms for entry in self.model.visible()), default=0)
        assert append_ms >= max(now, last)
        assert append_ms in {now, last} or append_ms in self.given_out
        self.given_out.add(append_ms)

    @rule(delta=st.sampled_from([1, 7, 1000, 6000, 3_000_000]))
    def pass_time(self, delta: int) -> None:
        """Advance the clock."""
        self.env.clock.advance(delta)

    @rule(delta=st.sampled_from([1, 5000, DAY_MS]))
    def set_clock_back(self, delta: int) -> None:
        """Set the clock back, as when a fast clock is corrected: append times must not decrease."""
        self.env.clock.advance(-delta)

    @rule()
    def roll(self) -> None:
        """Start a new segment; a roll syncs the old one."""
        if self.log.roll():
            self.model.durable_end = self.model.log_end

    @rule()
    def flush(self) -> None:
        """Sync everything."""
        self.log.flush()
        self.model.durable_end = self.model.log_end

    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        """Drop the tail in whole batches."""
        target = int(self.model.log_end * part)
        end = self.log.truncate_to(target)
        assert end <= target
        self.model.cut(end)
        self.model.log_start = min(self.model.log_start, target)

    @rule(part=st.floats(0, 1))
    def delete_records(self, part: float) -> None:
        """Increase the log start."""
        start = self.model.log_start
        target = start + int((self.model.log_end - start) * part)
        assert self.log.delete_records(target) == target
        self.model.log_start = target

    @rule(days=st.sampled_from([0, 0, 1, 30]))
    def retain(self, days: int) -> None:
        """Let time pass and apply retention: the expired segments are deleted, oldest first."""
        self.env.clock.advance(days * DAY_MS)
        spans = self._spans()
        now = self.env.clock.now_ms()
        fewest, most = self.model.expired(spans, self.retention_clock, self.retention_ms, now)
        gone = self.log.apply_retention()
        count = len(gone)
        assert fewest <= count <= most
        assert [one.base_offset for one in gone] == [span.base for span in spans[:count]]
        self.model.drop_before(spans[count].base if count < len(spans) else self.model.log_end)
        if days:
            self.directory.accept_clock()

    def _spans(self) -> list[Span]:
        return [self._span(segment) for segment in self.log.segments]

    def _span(self, segment: Segment) -> Span:
        seen_ms = self.log._notes.seen_ms(segment)
        times = read_times(self.log, segment, clock=self.retention_clock, seen_ms=seen_ms)
        return Span(
            segment.base_offset,
            segment.end_offset,
            segment.size_bytes,
            segment.mtime_ms(),
            times.fallback.ms,
            self.stamps and self.has_crashed,
        )

    @rule(hours=st.sampled_from([0, 2]), damage=st.sampled_from([None, None, *DAMAGES]))
    def restart(self, hours: int, damage: str | None) -> None:
        """Stop cleanly and start; meanwhile time may pass, and an index file may be damaged."""
        self.directory.close()
        self.model.durable_end = self.model.log_end
        self.env.clock.advance(hours * HOUR_MS)
        if damage is not None:
            self._damage_an_index(damage)
        self.directory = self._open()
        self.directory.accept_clock()

    @rule(damage=st.sampled_from([None, None, *DAMAGES]))
    def stop_hard(self, damage: str | None) -> None:
        """Kill the process, and possibly damage an index: recovery finds all written records."""
        self.directory.abandon()
        if damage is not None:
            self._damage_an_index(damage)
        self.directory = self._open()
        self._look_around(self.model.log_end)

    @rule(seed=st.integers(0, 2**32 - 1))
    def lose_power(self, seed: int) -> None:
        """Lose power: unsynced changes are kept, lost or torn; synced changes are kept."""
        self.directory.abandon()
        files = self.env.files
        state = next(iter(files.crash_states([seed], prefix=len(files.journal))))
        clock = self.env.clock
        self.env = SeededEnv(
            files=reopen(state, clock=clock), clock=clock, random=random.Random(seed)
        )
        self.directory = self._open()
        self._look_around(self.model.durable_end)

    def _look_around(self, least_end: int) -> None:
        """Update the model after a hard stop, which may make append times unknown forever."""
        self.has_crashed = True
        self.directory.accept_clock()
        end = self.log.log_end_offset
        assert max(least_end, self.model.log_start) <= end <= self.model.log_end
        self.model.cut(end)
        for entry in self.model.visible():
            known = self.log.append_time_of(entry.offset)
            assert known in {None, entry.append_ms}
            entry.append_ms = UNKNOWN if known is None else known

    def _damage_an_index(self, damage: str) -> None:
        files = self.env.files
        names = [e.name for e in files.list_dir(PARTITION) if e.name.endswith("index")]
        indexes = sorted(name for name in names if "txn" not in name)
        name = self.dice.choice(indexes)
        kin = [one for one in indexes if one != name and one.split(".")[1] == name.split(".")[1]]
        content = _damaged(
            damage,
            read_all(files, f"{PARTITION}/{name}"),
            self.dice,
            [read_all(files, f"{PARTITION}/{one}") for one in kin],
        )
        files.remove(f"{PARTITION}/{name}")
        if content is not None:
            write_all(files, f"{PARTITION}/{name}", content)
        files.sync_dir(PARTITION)

    # -- checks ------------------------------------------------------------------------------

    @invariant()
    def answers_are_the_models(self) -> None:
        """Check everything after each step."""
        if not hasattr(self, "directory"):
            return
        self._check_records(self.log)
        self._check_lookups(self.log, self.model)
        reader = LogDir.open(PATH, env=self.env).reader("t", 0)
        if self.USES_KERNELS:
            self.log.use_kernels()
            reader.use_kernels()
        self._check_records(reader)
        seen = self._as_seen(reader)
        self._check_lookups(reader, seen)
        self._check_range(seen)

    def _as_seen(self, reader: LogView) -> Model:
        """Return the model with the append times that a reader can prove while a writer is open."""
        seen = replace(self.model, entries=[])
        for entry in self.model.visible():
            known = reader.append_time_of(entry.offset)
            assert known in {None, entry.append_ms}
            seen.entries.append(replace(entry, append_ms=UNKNOWN if known is None else known))
        return seen

    def _check_records(self, log: LogView) -> None:
        found = [(r.offset, r.timestamp, r.value) for r in log.records()]
        assert found == [(e.offset, e.timestamp, e.value) for e in self.model.visible()]
        assert (log.log_start_offset, log.log_end_offset) == (
            self.model.log_start,
            self.model.log_end,
        )

    def _check_lookups(self, log: LogView, model: Model) -> None:
        for target in self._times(LOOKUPS_PER_STEP):
            for clock in ClockName:
                found = log.offset_for_time(target, clock=clock)
                assert pair(found) == model.first_at(target, clock), (target, clock)
        assert pair(log.max_timestamp()) == model.latest()

    def _times(self, count: int) -> list[int]:
        """Return times of records, times 1 ms earlier and later, the current and extreme times."""
        times = [0, 1, INT64_MAX, self.env.clock.now_ms()]
        for entry in self.dice.choices(self.model.visible() or [None], k=count):
            if entry is not None:
                base = entry.time(self.dice.choice(list(ClockName)))
                times.append(base + self.dice.choice((-1, 0, 1)))
        return [min(max(time, 0), INT64_MAX) for time in self.dice.choices(times, k=count)]

    def _check_range(self, model: Model) -> None:
        """Compare all records of a time range with a scan of the files."""
        clock = self.dice.choice(list(ClockName))
        start, end = sorted(self._times(2))
        splits = plan(
            PATH,
            "t",
            requested_range=RequestedRange(start_ms=start, end_ms=end),
            clock=clock,
            split_bytes=self.dice.choice((1, 300, 1 << 20)),
            env=self.env,
        )
        table = to_table(splits, ["offset", "value"], options=ReadOptions(env=self.env))
        found = list(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))
        assert found == model.between(start, end, clock), (start, end, clock)

    def teardown(self) -> None:
        """Close the directory."""
        if hasattr(self, "directory"):
            self.directory.close()


def pair(found: OffsetAndTimestamp | None) -> tuple[int, int] | None:
    """Return offset and time of a lookup's result."""
    return None if found is None else (found.offset, found.timestamp)


def read_all(files: FileSystem, path: str) -> bytes:
    """Return a file's bytes."""
    file = files.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()


def write_all(files: FileSystem, path: str, content: bytes) -> None:
    """Write a new file and sync it."""
    file = files.open(path, create=True)
    if content:
        file.pwrite(content, 0)
    file.sync()
    file.close()


def _damaged(damage: str, content: bytes, dice: random.Random, others: list[bytes]) -> bytes | None:
    """Return a damaged index file's content, None if it is removed."""
    return {
        "remove": None,
        "empty": b"",
        "zeros": bytes(len(content) + 24),
        "tail of zeros": content + bytes(240),
        "torn": content[: dice.randrange(len(content) + 1)],
        "noise": dice.randbytes(len(content) or 24),
        "other segment's": dice.choice(others or [content]),
    }[damage]
