"""Appends of producers and followers: duplicates, sequences, markers, batches of a leader."""

import pytest
from tests.faults import START_MS
from tests.worlds.directories.logs import (
    PATH,
    SMALL,
    TOPIC,
    batch,
    new_log,
    new_records,
    offsets,
    put,
    reopen,
)

from tidelog.errors import (
    CorruptRecord,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidRequest,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from tidelog.record.builder import build_batch
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.append_types import AppendOrigin, AppendTerms
from tidelog.types import NewRecord

DAY_MS = 86_400_000


class TestProducers:
    def client(self, sequence: int, count: int = 1, epoch: int = 0) -> bytearray:
        return batch(
            [START_MS] * count, producer_id=5, producer_epoch=epoch, base_sequence=sequence
        )

    def test_a_repeated_batch_gets_its_first_result_and_is_not_written(self) -> None:
        env, _, log = new_log()
        first = log.append_batches(self.client(0, 3))
        put(log, 1)
        env.clock.advance(100)
        again = log.append_batches(self.client(0, 3))
        assert again.is_duplicate
        assert (again.base_offset, again.last_offset) == (0, 2)
        assert again.append_time_ms == first.append_time_ms
        assert (
            again.log_append_time_ms == START_MS
        )  # the time of the stored batch, also on CreateTime topics
        assert log.log_end_offset == 4

    @pytest.mark.parametrize("is_clean", [True, False])
    def test_five_batches_are_remembered_also_after_a_restart(self, is_clean: bool) -> None:
        env, directory, log = new_log()
        for sequence in range(7):
            log.append_batches(self.client(sequence))
        for _ in range(2):
            for sequence in range(2, 7):
                assert log.append_batches(self.client(sequence)).base_offset == sequence
            with pytest.raises(OutOfOrderSequence):
                log.append_batches(self.client(1))
            stop = directory.close if is_clean else directory.abandon
            stop()
            directory, log = reopen(env)
        assert log.append_batches(self.client(7)).base_offset == 7

    def test_a_producer_of_old_records_is_known_after_a_roll_and_a_kill(self) -> None:
        """The producer's records are decades old, but the producer expires by append times."""
        env, directory, log = new_log()
        sent = [batch([n], producer_id=5, producer_epoch=0, base_sequence=n) for n in range(5)]
        for each in sent:
            log.append_batches(bytearray(each))
        log.roll()
        directory.abandon()
        _, log = reopen(env)
        for n, each in enumerate(sent):
            answer = log.append_batches(bytearray(each))
            assert (answer.is_duplicate, answer.base_offset) == (True, n)
        env.clock.advance(DAY_MS)
        log.producer_states().expire(env.clock.now_ms(), DAY_MS)
        assert not len(log.producer_states())

    @pytest.mark.parametrize("is_known", [True, False])
    def test_an_opening_removes_producers_that_have_expired(self, is_known: bool) -> None:
        env, directory, log = new_log()
        log.append_batches(self.client(0))
        directory.close()
        env.clock.advance(3 * DAY_MS)
        expiration_ms = 3 * DAY_MS + is_known
        options = LogDirOptions(writable=True, producer_expiration_ms=expiration_ms)
        with LogDir.open(PATH, env=env, options=options) as directory:
            assert len(directory.log(TOPIC, 0).producer_states()) == is_known

    def test_batches_of_an_older_epoch_do_not_return(self) -> None:
        env, directory, log = new_log()
        for epoch in (0, 1):
            log.append_batches(self.client(0, epoch=epoch))
        directory.close()
        _, log = reopen(env)
        assert log.append_batches(self.client(0, epoch=1)).base_offset == 1
        with pytest.raises(InvalidProducerEpoch):
            log.append_batches(self.client(0, epoch=0))

    def test_gaps_and_old_epochs_are_refused(self) -> None:
        _, _, log = new_log()
        log.append_batches(self.client(0))
        with pytest.raises(OutOfOrderSequence):
            log.append_batches(self.client(2))
        log.append_batches(self.client(0, epoch=1))
        with pytest.raises(InvalidProducerEpoch):
            log.append_batches(self.client(1, epoch=0))
        assert log.log_end_offset == 2

    def test_producer_states_survive_a_hard_stop(self) -> None:
        env, directory, log = new_log(SMALL)
        for sequence in range(20):
            log.append_batches(self.client(sequence))
        directory.abandon()
        _, log = reopen(env)
        assert log.append_batches(self.client(19)).is_duplicate
        with pytest.raises(OutOfOrderSequence):
            log.append_batches(self.client(21))
        log.append_batches(self.client(20))

    def test_truncated_batches_are_forgotten(self) -> None:
        _, _, log = new_log()
        for sequence in range(4):
            log.append_batches(self.client(sequence))
        log.truncate_to(2)
        assert log.append_batches(self.client(2)).base_offset == 2

    def test_a_marker_of_an_older_coordinator_is_refused(self) -> None:
        _, _, log = new_log()
        end = {"producer_id": 5, "producer_epoch": 0}
        log.end_transaction(**end, coordinator_epoch=3, commit=True)
        with pytest.raises(TransactionCoordinatorFenced):
            log.end_transaction(**end, coordinator_epoch=2, commit=True)
        with pytest.raises(InvalidRecord):
            log.append_batches(batch([1], producer_id=5, producer_epoch=0, control=True))

    def test_a_copied_control_batch_that_cannot_be_read_is_refused_before_it_is_written(
        self,
    ) -> None:
        _, _, log = new_log()
        bad = build_batch(
            [NewRecord(key=b"\0", value=b"x", timestamp=1)],
            producer_id=5,
            producer_epoch=0,
            transactional=True,
            control=True,
        )
        with pytest.raises(CorruptRecord):
            log.follower.append(bad)
        assert (log.log_end_offset, log.active.size_bytes) == (0, 0)
        put(log, 1)
        assert offsets(log.records()) == [0]


class TestFollower:
    def test_offsets_epochs_and_gaps_stay(self) -> None:
        _, _, log = new_log()
        for base in (3, 10):
            data = build_batch(new_records([1, 2]), base_offset=base, leader_epoch=base)
            log.follower.append(data)
        assert offsets(log.records()) == [3, 4, 10, 11]
        assert [(e.epoch, e.start_offset) for e in log.leader_epochs.entries] == [(3, 3), (10, 10)]
        for base in (11, 0):
            with pytest.raises(InvalidRequest):
                log.follower.append(build_batch(new_records([1]), base_offset=base))

    def test_arrival_is_never_passed_off_as_the_append_time(self) -> None:
        _, _, log = new_log()
        log.follower.append(build_batch(new_records([1]), base_offset=0, leader_epoch=0))
        assert log.append_time_of(0) is None
        told = build_batch(new_records([1]), base_offset=1, leader_epoch=0)
        log.follower.append(told, append_ms=START_MS - 5)
        with pytest.raises(InvalidRequest, match="never decrease"):
            log.follower.append(
                build_batch(new_records([1]), base_offset=2, leader_epoch=0), append_ms=START_MS - 6
            )
        assert [log.append_time_of(offset) for offset in (0, 1)] == [None, START_MS - 5]

    def test_many_batches_of_our_own_at_once(self) -> None:
        _, _, log = new_log()
        data = batch([1, 2]) + batch([3])
        with pytest.raises(InvalidRecord):
            log.append_batches(data)
        answer = log.append_batches(data, AppendTerms(AppendOrigin.SINK))
        assert (answer.base_offset, answer.last_offset) == (0, 2)
