"""The log against a list: any order of appends, rolls, cuts, deletions, clock moves and restarts.

After each step the log must hold the model's records at their offsets, and answer every lookup by
time, on both clocks, as a full scan of the model does.
"""

from dataclasses import dataclass, field

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.faults import SeededEnv, seeded_env

from tidelog.storage.log import Log
from tidelog.storage.log_dir import LogDir, LogDirOptions
from tidelog.storage.log_reader import LogReader
from tidelog.types import ClockName, Codec, NewRecord, OffsetAndTimestamp

PATH = "/data"
DAY_MS = 86_400_000
CONFIGS = (
    {"internal.segment.bytes": "700", "index.interval.bytes": "100"},
    {"internal.segment.bytes": "3000", "index.interval.bytes": "0"},
    {"segment.ms": "5000", "message.timestamp.type": "LogAppendTime"},
    {"segment.index.bytes": "36", "index.interval.bytes": "1"},
)
# Around the clock's time, equal ones, none at all, and the edges of what the format can say.
TIMESTAMPS = st.one_of(
    st.integers(min_value=-20_000, max_value=20_000).map(lambda delta: ("near", delta)),
    st.sampled_from([("fixed", -1), ("fixed", 0), ("fixed", 2**62), ("near", 0)]),
)


@dataclass
class Entry:
    """One record of the model."""

    offset: int
    timestamp: int
    append_ms: int
    value: bytes


@dataclass
class Model:
    """What the log should hold."""

    entries: list[Entry] = field(default_factory=list)
    log_start: int = 0
    log_end: int = 0

    def visible(self) -> list[Entry]:
        """The records that may be read."""
        return [entry for entry in self.entries if entry.offset >= self.log_start]

    def first_at(self, target: int, clock: ClockName) -> tuple[int, int] | None:
        """The earliest record at or after a time: (offset, its time)."""
        for entry in self.visible():
            time_ms = entry.timestamp if clock is ClockName.RECORD else entry.append_ms
            if time_ms >= target:
                return entry.offset, time_ms
        return None


class LogMachine(RuleBasedStateMachine):
    """Drives a log and the model together."""

    @initialize(config=st.sampled_from(CONFIGS), seed=st.integers(0, 1000))
    def begin(self, config: dict[str, str], seed: int) -> None:
        """A fresh directory with one topic."""
        self.env: SeededEnv = seeded_env(seed)
        self.model = Model()
        self.stamps = config.get("message.timestamp.type") == "LogAppendTime"
        self.directory = self._open()
        after = {"message.timestamp.after.max.ms": str(2**63 - 1), "retention.ms": "-1"}
        self.directory.create_topic("t", config={**config, **after})
        self.values = 0
        self.given_out: set[int] = set()

    def _open(self) -> LogDir:
        return LogDir.open(PATH, env=self.env, options=LogDirOptions(create=True))

    @property
    def log(self) -> Log:
        return self.directory.log("t", 0)

    @rule(
        times=st.lists(TIMESTAMPS, min_size=1, max_size=6),
        codec=st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4, Codec.ZSTD]),
        batch_bytes=st.sampled_from([1, 60, 10_000]),
    )
    def append(self, times: list[tuple[str, int]], codec: Codec, batch_bytes: int) -> None:
        now = self.env.clock.now_ms()
        records = []
        for kind, value in times:
            timestamp = max(now + value, 0) if kind == "near" else value
            self.values += 1
            records.append(NewRecord(key=b"k", value=b"%d" % self.values, timestamp=timestamp))
        result = self.log.append(records, codec=codec, batch_bytes=batch_bytes)
        last = max((entry.append_ms for entry in self.model.visible()), default=0)
        append_ms = result.append_time_ms
        # Never back; ahead of the clock only where a time given out before was.
        assert append_ms >= max(now, last)
        assert append_ms in {now, last} or append_ms in self.given_out
        self.given_out.add(append_ms)
        for record in records:
            assert record.timestamp is not None
            seen = append_ms if self.stamps else record.timestamp
            assert record.value is not None
            self.model.entries.append(Entry(self.model.log_end, seen, append_ms, record.value))
            self.model.log_end += 1
        assert result.last_offset == self.model.log_end - 1

    @rule(delta=st.sampled_from([1, 7, 1000, 6000, 3_000_000]))
    def pass_time(self, delta: int) -> None:
        self.env.clock.advance(delta)

    @rule(delta=st.sampled_from([1, 5000, DAY_MS]))
    def set_clock_back(self, delta: int) -> None:
        """Someone corrects a clock that ran fast: append times must not run back."""
        self.env.clock.advance(-delta)

    @rule()
    def roll(self) -> None:
        assert self.log.roll() in {True, False}

    @rule()
    def flush(self) -> None:
        self.log.flush()

    @rule(part=st.floats(0, 1))
    def truncate(self, part: float) -> None:
        target = int(self.model.log_end * part)
        end = self.log.truncate_to(target)
        assert end <= target
        self.model.entries = [entry for entry in self.model.entries if entry.offset < end]
        self.model.log_end = end
        self.model.log_start = min(self.model.log_start, target)

    @rule(part=st.floats(0, 1))
    def delete_records(self, part: float) -> None:
        start = self.model.log_start
        target = start + int((self.model.log_end - start) * part)
        assert self.log.delete_records(target) == target
        self.model.log_start = target

    @rule()
    def retain(self) -> None:
        """Only segments below the log start go: the topic keeps its records for ever."""
        self.log.apply_retention()
        self.model.entries = self.model.visible()

    @rule(hours=st.sampled_from([0, 2]))
    def restart(self, hours: int) -> None:
        """A clean stop; the clock may stand somewhere else afterwards."""
        self.directory.close()
        self.env.clock.advance(hours * 3_600_000)
        self.directory = self._open()
        self.log.accept_clock()

    @rule()
    def stop_hard(self) -> None:
        """Killed, the disk kept what was written: nothing may be lost, recovery finds it all."""
        self.directory.abandon()
        self.directory = self._open()
        self.log.accept_clock()
        for entry in self.model.visible():
            known = self.log.append_time_of(entry.offset)
            assert known in {None, entry.append_ms}
        self._forget_unknown()

    def _forget_unknown(self) -> None:
        """What a hard stop made unknown stays so."""
        for entry in self.model.visible():
            if self.log.append_time_of(entry.offset) is None:
                entry.append_ms = -1

    @invariant()
    def records_are_equal(self) -> None:
        if not hasattr(self, "directory"):
            return
        self._check_records(self.log)
        reader = LogDir.open(PATH, env=self.env).reader("t", 0)
        self._check_records(reader)
        self._check_lookups(self.log)

    def _check_records(self, log: LogReader) -> None:
        found = [(r.offset, r.timestamp, r.value) for r in log.records()]
        assert found == [(e.offset, e.timestamp, e.value) for e in self.model.visible()]
        assert (log.log_start_offset, log.log_end_offset) == (
            self.model.log_start,
            self.model.log_end,
        )

    def _check_lookups(self, log: LogReader) -> None:
        times = {0, 1}
        for entry in self.model.visible()[-12:]:
            times |= {entry.timestamp, entry.timestamp + 1, entry.append_ms, entry.append_ms + 1}
        for target in sorted(time for time in times if time >= 0):
            for clock in ClockName:
                found = log.offset_for_time(target, clock=clock)
                assert _pair(found) == self.model.first_at(target, clock), (target, clock)
        timed = [e for e in self.model.visible() if e.timestamp >= 0]
        largest = max(timed, key=lambda e: (e.timestamp, -e.offset), default=None)
        expected = None if largest is None else (largest.offset, largest.timestamp)
        assert _pair(log.max_timestamp()) == expected

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.directory.close()


def _pair(found: OffsetAndTimestamp | None) -> tuple[int, int] | None:
    return None if found is None else (found.offset, found.timestamp)


TestLogModel = LogMachine.TestCase
TestLogModel.settings = settings(
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes here
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
