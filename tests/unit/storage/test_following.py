"""A log that is a follower's copy: first offset, log start, the leader's epochs, crashes."""

import pytest
from tests.faults import START_MS, Fault, FaultKind, SeededEnv, seeded_env
from tests.faults import reopen as without_power
from tests.faults.later import Later
from tests.worlds.directories.logs import (
    PATH,
    SMALL,
    TOPIC,
    bases,
    batch,
    new_log,
    new_records,
    offsets,
    put,
    read,
    reader_of,
    reopen,
)

from tidelog.errors import (
    CorruptBatch,
    CorruptFile,
    InvalidRequest,
    OffsetOutOfRange,
    StorageFailure,
    UnsupportedVersion,
)
from tidelog.record.builder import build_batch
from tidelog.record.compression import compress
from tidelog.record.legacy import build_legacy_message
from tidelog.storage.directory import broker_files as go
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.log import Log
from tidelog.types import INT32_MAX, Codec, NewRecord

WRITABLE = LogDirOptions(writable=True)


def copied(base: int, epoch: int = 0, count: int = 1) -> bytearray:
    return build_batch(new_records([1] * count), base_offset=base, leader_epoch=epoch)


class TestBeginning:
    @pytest.mark.parametrize("offset", [0, 7, 5_000_000_000])
    def test_an_empty_log_begins_anywhere(self, offset: int) -> None:
        env, directory, log = new_log()
        log.truncator.begin_at(offset)
        assert (log.log_start_offset, log.log_end_offset) == (offset, offset)
        log.follower.append(copied(offset))
        directory.close()
        again = LogDir.open(PATH, env=env, options=WRITABLE).log(TOPIC, 0)
        assert (again.log_start_offset, offsets(again.records())) == (offset, [offset])

    def test_a_log_may_begin_again_at_an_earlier_offset(self) -> None:
        _, _, log = new_log()
        log.truncator.begin_at(100)
        log.truncator.begin_at(40)
        log.follower.append(copied(40, count=3))
        log.deleter.advance_start(42)
        assert offsets(log.records()) == [42]

    def test_records_are_never_dropped_by_it(self) -> None:
        _, _, log = new_log()
        put(log, 1)
        with pytest.raises(InvalidRequest, match="it has records up to 1"):
            log.truncator.begin_at(9)
        with pytest.raises(InvalidRequest):
            log.truncator.begin_at(-1)
        assert offsets(log.records()) == [0]

    def test_no_transaction_of_deleted_records_stays_open(self) -> None:
        """The clean stop wrote a producer snapshot whose offset is not the base of a segment."""
        env, directory, log = new_log({**SMALL, "retention.ms": "1000"})
        log.follower.append(
            batch([1], producer_id=9, producer_epoch=0, base_sequence=0, transactional=True)
        )
        directory.close()
        _, log = reopen(env)
        log.follower.append(copied(1))
        env.clock.advance(10_000)
        log.apply_retention()
        assert not log.truncator.has_records
        log.truncator.begin_at(50)
        log.follower.append(copied(50))
        assert log.producer_states().open_transactions == {}
        assert log.last_stable_offset == 51

    def test_every_crash_leaves_the_old_beginning_or_the_new_one(self) -> None:
        env, directory, log = new_log()
        directory.flush()
        env.files.settle()
        log.truncator.begin_at(50)
        log.follower.append(copied(50))
        directory.flush()
        seen = set()
        for state in env.files.crash_states(range(400)):
            after = LogDir.open(
                PATH, env=seeded_env(9, files=without_power(state)), options=WRITABLE
            )
            found = after.log(TOPIC, 0)
            seen.add((found.log_start_offset, found.log_end_offset))
        assert seen <= {(0, 0), (50, 50), (50, 51)}
        assert (50, 51) in seen


FAR = 3_000_000_000


class TestGapsLargerThanASegment:
    """Compaction at the leader may leave gaps of more than 2^31 - 1 offsets."""

    @pytest.mark.parametrize(
        ("before", "copied_at", "bases_after"),
        [
            ([], [0, 1, FAR], [0, FAR]),
            ([], [0, INT32_MAX, INT32_MAX + 1], [0, INT32_MAX + 1]),
            ([0], [1, INT32_MAX + 1, 2 * FAR], [0, 1, 2 * FAR]),
            ([0], [1, INT32_MAX + 2, 2 * FAR], [0, INT32_MAX + 2, 2 * FAR]),
            ([0], [1, FAR, FAR + 1, 2 * FAR, 2 * FAR + 9], [0, FAR, 2 * FAR]),
            ([], [FAR, 2 * FAR, 3 * FAR], [0, FAR, 2 * FAR, 3 * FAR]),
            ([0], [2 * FAR, 2 * FAR + 1, 3 * FAR], [0, 2 * FAR, 3 * FAR]),
        ],
    )
    @pytest.mark.parametrize("is_clean", [True, False])
    def test_one_append_is_split_over_segments(
        self, before: list[int], copied_at: list[int], bases_after: list[int], *, is_clean: bool
    ) -> None:
        env, directory, log = new_log({"index.interval.bytes": "0"})
        for base in before:
            log.follower.append(copied(base))
        result = log.follower.append(b"".join(map(copied, copied_at)))
        assert (result.base_offset, result.last_offset) == (copied_at[0], copied_at[-1])
        assert bases(log) == bases_after
        log.follower.append(copied(copied_at[-1] + 1))
        expected = [*before, *copied_at, copied_at[-1] + 1]
        assert offsets(log.records()) == expected
        (directory.close if is_clean else directory.abandon)()
        assert offsets(reader_of(env).records()) == expected
        _, log = reopen(env)
        assert log.failure is None
        assert (bases(log), offsets(log.records())) == (bases_after, expected)
        log.follower.append(copied(log.log_end_offset))
        assert offsets(log.records()) == [*expected, expected[-1] + 1]

    def test_no_part_is_written_if_a_later_batch_is_refused(self) -> None:
        env, _, log = new_log()
        broken = copied(FAR)
        broken[-1] ^= 1
        with pytest.raises(CorruptBatch):
            log.follower.append(copied(0) + broken)
        assert (log.log_end_offset, bases(log)) == (0, [0])
        assert not read(env, "00000000000000000000.log")

    def test_no_append_succeeds_if_deferred_work_of_its_roll_fails(self) -> None:
        """If a roll's work fails, a gap's note may be lost. Recovery could then drop batches."""

        def opened() -> tuple[SeededEnv, Log]:
            env = seeded_env(1)
            options = LogDirOptions(create=True, deferrals=Later)
            directory = LogDir.open(PATH, env=env, options=options)
            directory.create_topic(TOPIC)
            log = directory.log(TOPIC, 0)
            log.follower.append(copied(0))
            return env, log

        data = copied(1) + copied(FAR) + copied(2 * FAR)
        env, log = opened()
        before = env.files.calls
        log.follower.append(data)
        refused = 0
        for call in range(before, env.files.calls):
            failing, log = opened()
            failing.files.writes.fault = Fault(call, FaultKind.EIO)
            try:
                log.follower.append(data)
            except StorageFailure:
                refused += 1
            else:
                assert log.failure is None
        assert refused > 10

    @pytest.mark.parametrize("first", [5, FAR])
    def test_messages_of_an_old_format_are_split_too(self, first: int) -> None:
        _, _, log = new_log()
        copied_at = [first, first + 1, first + FAR]
        messages = [
            build_legacy_message(b"k", b"v", magic=1, offset=offset, timestamp=1)
            for offset in copied_at
        ]
        log.follower.append(b"".join(messages))
        log.follower.append(copied(copied_at[-1] + 1))
        assert offsets(log.records()) == [*copied_at, copied_at[-1] + 1]

    def test_a_wrapper_of_more_offsets_is_refused(self) -> None:
        _, _, log = new_log()
        inner = [
            build_legacy_message(b"k", b"v", magic=0, offset=offset) for offset in (0, 1 << 31)
        ]
        body = compress(Codec.GZIP, b"".join(inner))
        wrapper = build_legacy_message(
            None, body, magic=0, offset=1 << 31, attributes=int(Codec.GZIP)
        )
        with pytest.raises(InvalidRequest, match="offsets 0 to 2147483648 in one batch"):
            log.follower.append(wrapper)
        assert log.log_end_offset == 0
        log.follower.append(copied(0))
        assert offsets(log.records()) == [0]


class TestStart:
    def test_the_start_moves_up_with_any_policy(self) -> None:
        _, _, log = new_log({"cleanup.policy": "compact"})
        put(log, 1, 2, 3)
        log.deleter.advance_start(2)
        log.deleter.advance_start(1)
        assert log.log_start_offset == 2
        with pytest.raises(OffsetOutOfRange):
            log.deleter.advance_start(4)


class TestEpochs:
    def test_an_epoch_without_records_is_kept_in_mind(self) -> None:
        env, directory, log = new_log()
        log.follower.append(copied(0, epoch=3))
        log.follower.note_leader_epoch(8)
        log.follower.note_leader_epoch(5)
        directory.close()
        again = LogDir.open(PATH, env=env, options=WRITABLE).log(TOPIC, 0)
        assert again.leader_epoch == 9
        assert [entry.epoch for entry in again.leader_epochs.entries] == [3]

    def test_records_of_older_epochs_may_still_come(self) -> None:
        _, _, log = new_log()
        log.follower.note_leader_epoch(8)
        log.follower.append(copied(0, epoch=3))
        assert log.leader_epochs.entries == ((3, 0),)

    def test_the_last_batch_below_an_offset(self) -> None:
        _, _, log = new_log()
        assert log.follower.last_batch_below(10) is None
        log.follower.append(copied(0, count=3))
        log.roll()
        log.follower.append(copied(10))
        found = [log.follower.last_batch_below(offset) for offset in (1, 3, 10, 11)]
        assert [batch and batch.base_offset for batch in found] == [0, 0, 0, 10]
        assert log.follower.last_batch_below(0) is None


class TestClock:
    def test_stamps_are_never_run_behind(self) -> None:
        env, _, log = new_log({"message.timestamp.type": "LogAppendTime"})
        other_env, _, leader = new_log({"message.timestamp.type": "LogAppendTime"})
        other_env.clock.advance(30_000)
        put(leader, 1)
        (data,) = [bytes(b.view) for part in leader.slices() for _, b in part.batches()]
        log.follower.append(data)
        assert env.clock.now_ms() == START_MS
        assert log.append([NewRecord(value=b"x")]).append_time_ms == START_MS + 30_000


class TestGroupOffsets:
    @pytest.mark.parametrize("topic_copied", [False, True])
    def test_round_trip(self, *, topic_copied: bool) -> None:
        env, _, _ = new_log()
        assert go.read_group_offsets(env.files, PATH) is None
        commits = [go.GroupOffset("b", 1, 5, 2, "x"), go.GroupOffset("a", 0, 7)]
        offsets = go.GroupOffsets(9, {"g": commits, "e": []}, topic_copied)
        go.write_group_offsets(env.files, PATH, offsets)
        found = go.read_group_offsets(env.files, PATH)
        assert found == go.GroupOffsets(9, {"g": commits[::-1], "e": []}, topic_copied)

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "[]",
            "{}",
            '{"version": 1, "fetched_ms": 1, "groups": []}',
            '{"version": 1, "fetched_ms": 1, "groups": {"g": {}}}',
            '{"version": 1, "fetched_ms": 1, "groups": {"g": [{"topic": "t"}]}}',
        ],
    )
    def test_an_invalid_file_of_group_offsets_is_refused(self, text: str) -> None:
        with pytest.raises(CorruptFile):
            go.decode_group_offsets(text.encode())

    def test_a_later_version(self) -> None:
        with pytest.raises(UnsupportedVersion):
            go.decode_group_offsets(b'{"version": 2}')
