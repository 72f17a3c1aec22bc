"""A standby ends an open transaction whose marker the leader has deleted."""

from typing import TYPE_CHECKING

import pytest
from tests.faults import Keep, SeededEnv, reopen, seeded_env
from tests.unit.standby.test_follow import P0, STANDBY, copy_all, follow, standby_dir
from tests.worlds.clusters.fake_leader import HOST, PORT, FakeLeader, catch_up

from tidelog.protocol.messages.fetch import FetchRequest, FetchResponse
from tidelog.protocol.requests import ReceivedRequest
from tidelog.record.builder import build_batch
from tidelog.remote.leader import FetchLimits
from tidelog.standby.follower import Follower, FollowOptions
from tidelog.storage.checks import DirectoryCheck
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.log import Log
from tidelog.types import IsolationLevel, NewRecord

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

COMMITTED = IsolationLevel.READ_COMMITTED


def write(
    log: Log, value: bytes, *, producer_id: int = 9, sequence: int = 0, epoch: int = 0
) -> None:
    batch = build_batch(
        [NewRecord(key=b"k", value=value, timestamp=1)],
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    log.append_batches(batch)


def end(log: Log, *, commit: bool = True, epoch: int = 0) -> None:
    log.end_transaction(producer_id=9, producer_epoch=epoch, coordinator_epoch=0, commit=commit)


def begun(leader: FakeLeader, env: SeededEnv) -> Log:
    """Begin a transaction on the leader, copy it to the standby, and return the leader's log."""
    log = leader.log()
    write(log, b"begun")
    copy_all(leader, env)
    return log


def committed_values(log: Log) -> list[bytes | None]:
    return [record.value for record in log.records(isolation=COMMITTED)]


def reopened_after_a_kill(env: SeededEnv) -> Log:
    directory = LogDir.open(STANDBY, env=env, options=LogDirOptions(writable=True))
    directory.abandon()
    return LogDir.open(STANDBY, env=env, options=LogDirOptions(writable=True)).log("t", 0)


def test_a_marker_that_was_deleted_ends_it(leader: FakeLeader, env: SeededEnv) -> None:
    log = begun(leader, env)
    end(log)
    leader.put(b"deleted")
    log.deleter.advance_start(log.log_end_offset)
    leader.put(b"behind")

    copy_all(leader, env)

    with standby_dir(env) as directory:
        mine = directory.log("t", 0)
        assert mine.last_stable_offset == mine.log_end_offset == log.log_end_offset
        assert committed_values(mine) == [b"begun", b"behind"]
        mine.append([NewRecord(value=b"own")])
    assert committed_values(reopened_after_a_kill(env)) == [b"begun", b"behind", b"own"]


def test_such_a_log_has_no_findings(leader: FakeLeader, env: SeededEnv) -> None:
    log = begun(leader, env)
    end(log)
    log.deleter.advance_start(log.log_end_offset)
    leader.put(b"behind")
    copy_all(leader, env)

    check = DirectoryCheck(env.files, STANDBY, clock=env.clock)

    assert [*check.load(), *check.findings()] == []


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_across_the_gap_stays_open_until_its_marker(
    leader: FakeLeader, env: SeededEnv, commit: bool
) -> None:
    log = begun(leader, env)
    leader.put(b"deleted")
    log.deleter.advance_start(log.log_end_offset)
    leader.put(b"behind")
    copy_all(leader, env)
    with standby_dir(env) as directory:
        assert directory.log("t", 0).last_stable_offset == 0
    end(log, commit=commit)
    leader.put(b"last")

    copy_all(leader, env)

    with standby_dir(env) as directory:
        mine = directory.log("t", 0)
        assert mine.last_stable_offset == mine.log_end_offset
        assert committed_values(mine) == [*([b"begun"] if commit else []), b"behind", b"last"]


def test_its_producers_next_transaction_is_not_ended_with_it(
    leader: FakeLeader, env: SeededEnv
) -> None:
    log = begun(leader, env)
    end(log)
    log.deleter.advance_start(log.log_end_offset)
    leader.put(b"behind")
    write(log, b"next", sequence=1)
    copy_all(leader, env)
    with standby_dir(env) as directory:
        assert committed_values(directory.log("t", 0)) == []
    end(log, commit=False)

    copy_all(leader, env)

    with standby_dir(env) as directory:
        mine = directory.log("t", 0)
        assert mine.last_stable_offset == mine.log_end_offset
        assert committed_values(mine) == [b"begun", b"behind"]
    assert committed_values(reopened_after_a_kill(env)) == [b"begun", b"behind"]
    check = DirectoryCheck(env.files, STANDBY, clock=env.clock)
    assert [*check.load(), *check.findings()] == []


def test_a_transaction_found_late_is_ended_even_if_the_standby_is_killed(
    leader: FakeLeader, env: SeededEnv
) -> None:
    """The standby first copied the next transaction's records as part of the open transaction."""
    log = begun(leader, env)
    end(log)
    log.deleter.advance_start(log.log_end_offset)
    write(log, b"next", sequence=1)
    with follow(leader, env) as follower:
        catch_up(follower)
        end(log, commit=False)
        catch_up(follower)
        state = env.files.crash(Keep.EVERYTHING)
    again = seeded_env(4, files=reopen(state))
    mine = LogDir.open(STANDBY, env=again, options=LogDirOptions(writable=True)).log("t", 0)
    assert committed_values(mine) == [b"begun"]
    assert mine.last_stable_offset == mine.log_end_offset


def test_the_transaction_stays_open_until_its_marker_may_no_longer_follow(
    leader: FakeLeader, env: SeededEnv
) -> None:
    """Each response has one batch; the last stable offset in all responses is 6."""
    log = begun(leader, env)
    for _ in range(3):
        leader.put(b"between")
    end(log, commit=False)
    leader.put(b"last")
    options = FollowOptions(limits=FetchLimits(partition_max_bytes=1))
    with Follower.open(STANDBY, HOST, PORT, options, seams=leader.seams(env)) as follower:
        mine = follower.copies[P0].log
        assert [mine.last_stable_offset for _ in follower.rounds_to_catch_up()] == [0, 0, 0, 5, 6]
        assert committed_values(mine) == [*[b"between"] * 3, b"last"]


def test_a_later_abort_of_the_producer_does_not_hide_the_committed_records(
    leader: FakeLeader, env: SeededEnv
) -> None:
    """The committed records stay visible, even if the log is read again after a kill."""
    log = begun(leader, env)
    end(log)
    log.deleter.advance_start(log.log_end_offset)
    leader.put(b"behind")
    copy_all(leader, env)
    write(log, b"next", sequence=1)
    end(log, commit=False)
    leader.put(b"last")

    copy_all(leader, env)

    shown = [b"begun", b"behind", b"last"]
    with standby_dir(env) as directory:
        assert committed_values(directory.log("t", 0)) == shown
    assert committed_values(reopened_after_a_kill(env)) == shown
    check = DirectoryCheck(env.files, STANDBY, clock=env.clock)
    assert [*check.load(), *check.findings()] == []


@pytest.mark.parametrize("keep", Keep)
def test_nor_where_the_standby_is_killed(leader: FakeLeader, env: SeededEnv, keep: Keep) -> None:
    log = begun(leader, env)
    end(log)
    log.deleter.advance_start(log.log_end_offset)
    leader.put(b"behind")
    with follow(leader, env) as follower:
        catch_up(follower)
        write(log, b"next", sequence=1)
        end(log, commit=False)
        leader.put(b"last")
        catch_up(follower)
        state = env.files.crash(keep)
    again = seeded_env(4, files=reopen(state))
    found = committed_values(
        LogDir.open(STANDBY, env=again, options=LogDirOptions(writable=True)).log("t", 0)
    )
    assert found == [b"begun", b"behind", b"last"][: len(found)]
    assert len(found) == 3 or (keep is not Keep.EVERYTHING and len(found) == 2)


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("begins_in_the_gap", [True, False])
def test_a_lost_marker_and_a_later_abort_in_one_response_hide_no_committed_record(
    leader: FakeLeader, env: SeededEnv, epoch: int, begins_in_the_gap: bool
) -> None:
    """The response lists the aborted transaction's first offset: the transaction begins there.

    If the producer epoch is newer, the epoch alone shows the standby that a new transaction began.
    """
    log = begun(leader, env)
    end(log)
    sequence = 0 if epoch else 1
    if begins_in_the_gap:
        write(log, b"deleted", sequence=sequence, epoch=epoch)
        sequence += 1
    log.deleter.advance_start(log.log_end_offset)
    leader.put(b"behind")
    write(log, b"next", sequence=sequence, epoch=epoch)
    end(log, commit=False, epoch=epoch)
    leader.put(b"last")

    copy_all(leader, env)

    shown = [b"begun", b"behind", b"last"]
    with standby_dir(env) as directory:
        assert committed_values(directory.log("t", 0)) == shown
    assert committed_values(reopened_after_a_kill(env)) == shown
    check = DirectoryCheck(env.files, STANDBY, clock=env.clock)
    assert [*check.load(), *check.findings()] == []


def test_a_transaction_across_the_gap_is_aborted_in_one_response(
    leader: FakeLeader, env: SeededEnv
) -> None:
    log = begun(leader, env)
    leader.put(b"deleted")
    log.deleter.advance_start(log.log_end_offset)
    leader.put(b"behind")
    write(log, b"more", sequence=1)
    end(log, commit=False)
    write(log, b"next", sequence=2)
    end(log)

    copy_all(leader, env)

    with standby_dir(env) as directory:
        assert committed_values(directory.log("t", 0)) == [b"behind", b"next"]


def test_a_newer_epoch_ends_a_transaction_that_the_leader_cannot_report(
    leader: FakeLeader, env: SeededEnv
) -> None:
    """While a transaction from the gap is open, the leader reports no later transaction's abort."""
    log = begun(leader, env)
    end(log)
    write(log, b"other", producer_id=7)
    log.deleter.advance_start(log.log_end_offset)
    write(log, b"next", sequence=0, epoch=1)
    end(log, commit=False, epoch=1)
    copy_all(leader, env)
    log.end_transaction(producer_id=7, producer_epoch=0, coordinator_epoch=0, commit=True)

    copy_all(leader, env)

    with standby_dir(env) as directory:
        assert committed_values(directory.log("t", 0)) == [b"begun"]


def test_a_failed_request_to_the_leader_is_retried(leader: FakeLeader, env: SeededEnv) -> None:
    log = begun(leader, env)
    end(log)
    log.deleter.advance_start(log.log_end_offset)
    write(log, b"next", sequence=1)
    end(log, commit=False)
    failing = [True]

    def refuse(request: ReceivedRequest, answer: "DataclassInstance") -> "DataclassInstance":
        asked = request.message
        if isinstance(asked, FetchRequest) and asked.isolation_level and failing:
            failing.pop()
            assert isinstance(answer, FetchResponse)
            answer.error_code = -1
        return answer

    leader.mangle = refuse
    copy_all(leader, env)

    assert not failing
    with standby_dir(env) as directory:
        assert committed_values(directory.log("t", 0)) == [b"begun"]


@pytest.mark.parametrize("commit", [True, False])
def test_records_deleted_during_the_leaders_response_end_no_transaction(
    leader: FakeLeader, env: SeededEnv, commit: bool
) -> None:
    """A response has the old log start; its last stable offset is already the new log start."""
    log = begun(leader, env)
    leader.put(b"deleted")
    copy_all(leader, env)
    log.deleter.advance_start(log.log_end_offset)
    starts = [0]

    def mix(_request: ReceivedRequest, answer: "DataclassInstance") -> "DataclassInstance":
        if isinstance(answer, FetchResponse):
            (found,) = answer.responses[0].partitions
            found.log_start_offset = starts.pop() if starts else log.log_start_offset
            found.last_stable_offset = max(log.last_stable_offset, log.log_start_offset)
        return answer

    leader.mangle = mix
    with follow(leader, env) as follower:
        catch_up(follower)
        assert not starts
        assert follower.copies[P0].log.last_stable_offset == 0
        end(log, commit=commit)
        catch_up(follower)
        found = committed_values(follower.copies[P0].log)
    assert found == [*([b"begun"] if commit else []), b"deleted"]
