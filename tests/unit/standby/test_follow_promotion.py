"""Promotion of a standby, and a standby whose leader is unavailable for a while."""

import pytest
from tests.faults import START_MS, SeededEnv
from tests.unit.standby.test_follow import P0, STANDBY, copy_all, follow, standby_dir, values
from tests.worlds.clusters.fake_leader import LEADER_PATH, FakeLeader, catch_up

from tidelog.errors import ClusterFailure
from tidelog.types import ClockName, NewRecord


class TestPromotion:
    def test_append_times_do_not_decrease_at_the_new_leader(self, env: SeededEnv) -> None:
        """The scenario of KIP-32's first draft.

        The new leader's clock is behind the old leader's clock.
        """
        broker0 = FakeLeader()
        broker0.create(message_timestamp_type="LogAppendTime")
        broker0.put(b"m0")
        t0 = broker0.env.clock.now_ms()
        env.clock.set(t0 - 60_000)
        copy_all(broker0, env)
        with standby_dir(env) as broker1:
            log = broker1.log("t", 0)
            assert log.append_time_of(0) == t0
            m1 = log.append([NewRecord(key=b"k", value=b"m1")])
            m2 = log.append([NewRecord(key=b"k", value=b"m2")])
            env.clock.set(t0 + 5)
            m3 = log.append([NewRecord(key=b"k", value=b"m3")])
            assert [m.append_time_ms for m in (m1, m2, m3)] == [t0, t0, t0 + 5]
            assert [record.timestamp for record in log.records()] == [t0, t0, t0, t0 + 5]
            found = log.offset_for_time(t0 + 1, clock=ClockName.APPEND)
            assert found is not None
            assert found.offset == 3

    def test_append_times_do_not_decrease_in_the_process_that_followed(
        self, env: SeededEnv
    ) -> None:
        leader = FakeLeader()
        leader.create(message_timestamp_type="LogAppendTime")
        leader.put(b"a")
        env.clock.set(START_MS - 60_000)
        with follow(leader, env) as follower:
            catch_up(follower)
            log = follower.copies[P0].log
            assert log.append([NewRecord(value=b"b")]).append_time_ms == START_MS
            assert log.leader_epochs.entries == ((0, 0), (1, 1))

    def test_the_leader_epoch_grows_past_every_epoch_of_the_leader(
        self, leader: FakeLeader, env: SeededEnv
    ) -> None:
        """The new epoch is also higher than epochs in which the leader wrote no record."""
        leader.put(b"a")
        for _ in range(3):
            leader.restart()
            leader.log().swaps.begin_epoch()
        led = leader.log().leader_epoch
        assert led == 3
        copy_all(leader, env)
        with standby_dir(env) as directory:
            log = directory.log("t", 0)
            log.append([NewRecord(value=b"b")])
            assert log.leader_epochs.entries[-1] == (led + 1, 1)


class TestFailures:
    def test_following_continues_when_the_leader_returns(
        self, leader: FakeLeader, env: SeededEnv
    ) -> None:
        leader.put(b"a")
        with follow(leader, env) as follower:
            catch_up(follower)
            leader.is_down = True
            for _ in range(2):
                with pytest.raises(ClusterFailure):
                    follower.round()
                env.clock.advance(1000)
            leader.is_down = False
            leader.restart()
            leader.put(b"b")
            for _ in range(4):
                follower.round()
                env.clock.advance(300)
            assert values(follower.copies[P0].log) == [b"a", b"b"]

    def test_an_unreachable_leader_is_an_error(self, leader: FakeLeader, env: SeededEnv) -> None:
        leader.is_down = True
        with pytest.raises(ClusterFailure, match="leader:9092: could not connect"):
            follow(leader, env)
        assert not env.files.exists(STANDBY)
        assert LEADER_PATH != STANDBY
