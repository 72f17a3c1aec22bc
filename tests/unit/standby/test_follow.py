"""A standby follows a leader in memory: copies, continuations, truncations, refusals, promotion."""

from typing import TYPE_CHECKING

import pytest
from tests.faults import Keep, SeededEnv, reopen, seeded_env
from tests.worlds.clusters.fake_leader import HOST, PORT, FakeLeader, catch_up

from tidelog.errors import DirectoryLocked, InconsistentTopicId, UnknownTopic
from tidelog.protocol.messages.configs import ConfigSource, DescribeConfigsResponse
from tidelog.protocol.requests import ReceivedRequest
from tidelog.record.builder import build_batch
from tidelog.remote.leader import FetchLimits
from tidelog.standby.follower import Follower, FollowOptions
from tidelog.standby.topic_sync import TopicChoice
from tidelog.storage.directory.broker_files import GroupOffset, read_group_offsets
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_reader import LogView
from tidelog.types import OFFSETS_TOPIC, ClockName, Codec, NewRecord, TopicPartition

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

STANDBY = "/standby"
P0 = TopicPartition("t", 0)
# Sources of values that neither the topic nor a broker has set.
UNSET = {ConfigSource.UNKNOWN, ConfigSource.DEFAULT, ConfigSource.GROUP}


def follow(leader: FakeLeader, env: SeededEnv, **options: object) -> Follower:
    choice = TopicChoice(**options)  # type: ignore[arg-type] # options by name
    asked = FollowOptions(choice=choice, retain=False)
    return Follower.open(STANDBY, HOST, PORT, asked, seams=leader.seams(env))


def copy_all(leader: FakeLeader, env: SeededEnv) -> None:
    with follow(leader, env) as follower:
        catch_up(follower)
        assert follower.problems == {}


def standby_dir(env: SeededEnv) -> LogDir:
    return LogDir.open(STANDBY, env=env, options=LogDirOptions(writable=True))


def seen(env: SeededEnv) -> LogDir:
    """Open the standby's directory for reading."""
    return LogDir.open(STANDBY, env=env)


def log_bytes(log: Log) -> bytes:
    return b"".join(bytes(b.view) for part in log.slices() for _, b in part.batches())


def values(log: LogView) -> list[bytes | None]:
    return [record.value for record in log.records()]


def aborted(log: Log) -> list[object]:
    return [entry for segment in log.segments for entry in segment.txn_index.entries]


class TestCopy:
    def test_bytes_epochs_ids_and_settings_are_the_leaders(
        self, leader: FakeLeader, env: SeededEnv
    ) -> None:
        settings = {"internal.segment.bytes": "700", "max.message.bytes": "9999"}
        leader.directory.alter_config("t", settings)
        for number, codec in enumerate(Codec):
            records = [NewRecord(key=b"k%d" % number, value=b"v" * 40, timestamp=7)] * 20
            for start in range(0, 20, 5):
                leader.log().append(records[start : start + 5], codec=codec)
            if number == 2:
                leader.restart()
        copy_all(leader, env)
        with standby_dir(env) as directory:
            mine, theirs = directory.log("t", 0), leader.log()
            assert log_bytes(mine) == log_bytes(theirs)
            assert mine.leader_epochs.entries[:2] == theirs.leader_epochs.entries[:2]
            assert len(mine.segments) > 1
            assert directory.topic("t").topic_id == leader.directory.topic("t").topic_id
            assert directory.topic("t").given == leader.directory.topic("t").given

    def test_settings_of_the_leader_are_copied_within_30_seconds(
        self, leader: FakeLeader, env: SeededEnv
    ) -> None:
        with follow(leader, env) as follower:
            leader.directory.alter_config("t", {"max.message.bytes": "9999"})
            env.clock.advance(29_000)
            follower.round()
            assert "max.message.bytes" not in seen(env).topic("t").given
            env.clock.advance(1_000)
            follower.round()
            assert seen(env).topic("t").given["max.message.bytes"] == "9999"

    def test_a_follower_continues_at_its_last_offset(
        self, leader: FakeLeader, env: SeededEnv
    ) -> None:
        leader.put(b"a", b"b")
        copy_all(leader, env)
        leader.put(b"c")
        with follow(leader, env) as follower:
            catch_up(follower)
            copy = follower.copies[P0]
            assert copy.counts.batches == 1
            assert (copy.lag, copy.log.log_end_offset) == (0, 3)

    def test_a_lost_directory_is_copied_again(self, leader: FakeLeader, env: SeededEnv) -> None:
        leader.put(b"a", b"b")
        copy_all(leader, env)
        lost = f"{STANDBY}/t-0"
        for entry in env.files.list_dir(lost):
            env.files.remove(f"{lost}/{entry.name}")
        env.files.remove_dir(lost)
        with follow(leader, env) as follower:
            catch_up(follower)
            assert any("all records before offset 2" in note for note in follower.notes)
            assert values(follower.copies[P0].log) == [b"a", b"b"]

    def test_a_hard_stop_needs_only_a_recovery(self, leader: FakeLeader, env: SeededEnv) -> None:
        leader.put(b"a")
        with follow(leader, env) as follower:
            catch_up(follower)
            killed = reopen(env.files.crash(Keep.EVERYTHING))
        leader.put(b"b")
        env = seeded_env(3, files=killed)
        copy_all(leader, env)
        with standby_dir(env) as directory:
            assert values(directory.log("t", 0)) == [b"a", b"b"]

    def test_many_small_rounds(self, leader: FakeLeader, env: SeededEnv) -> None:
        for _ in range(30):
            leader.put(b"v" * 50)
        options = FollowOptions(limits=FetchLimits(partition_max_bytes=1))
        with Follower.open(STANDBY, HOST, PORT, options, seams=leader.seams(env)) as follower:
            lags = [follower.copies[P0].lag for _ in follower.rounds_to_catch_up()]
            assert lags == list(range(29, -1, -1))

    def test_append_times_are_unknown_not_those_of_arrival(
        self, leader: FakeLeader, env: SeededEnv
    ) -> None:
        leader.put(b"a")
        copy_all(leader, env)
        with standby_dir(env) as directory:
            log = directory.log("t", 0)
            assert log.append_time_of(0) is None
            assert log.offset_for_time(0, clock=ClockName.APPEND) is None

    def test_producers_and_aborted_transactions_are_derived_from_the_batches(
        self, leader: FakeLeader, env: SeededEnv
    ) -> None:
        log = leader.log()
        for producer in (5, 6):
            batch = build_batch(
                [NewRecord(key=b"k", value=b"%d" % producer, timestamp=1)],
                producer_id=producer,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            )
            log.append_batches(batch)
        log.end_transaction(producer_id=5, producer_epoch=0, coordinator_epoch=0, commit=False)
        copy_all(leader, env)
        with standby_dir(env) as directory:
            mine = directory.log("t", 0)
            assert mine.producer_states().encode_snapshot() == (
                log.producer_states().encode_snapshot()
            )
            assert mine.last_stable_offset == log.last_stable_offset == 1
            # The sizes of fetches determine where the standby's segments roll. So the entry of an
            # aborted transaction may be in the index of one segment on the leader, and in the index
            # of a different segment on the standby.
            assert aborted(mine) == aborted(log) != []


class TestManyBrokers:
    def test_each_partition_is_fetched_from_its_leader(self, env: SeededEnv) -> None:
        leader = FakeLeader(nodes=3)
        leader.create(partitions=5)
        for number in range(5):
            leader.put(b"%d" % number, partition=number)
        with follow(leader, env) as follower:
            catch_up(follower)
            found = {name.partition: copy for name, copy in follower.copies.items()}
            assert [copy.led.leader_id for copy in found.values()] == [1, 2, 3, 1, 2]
            assert [values(copy.log) for copy in found.values()] == [
                [b"%d" % number] for number in range(5)
            ]

    def test_partitions_that_move(self, env: SeededEnv) -> None:
        leader = FakeLeader(nodes=2)
        leader.create(partitions=2)
        with follow(leader, env) as follower:
            catch_up(follower)
            leader.shift = 1
            leader.restart()
            for number in range(2):
                leader.put(b"%d" % number, partition=number)
            env.clock.advance(300)
            catch_up(follower)
            assert follower.problems == {}
            assert [values(copy.log) for copy in follower.copies.values()] == [[b"0"], [b"1"]]


class TestTopics:
    def test_new_topics_partitions_and_settings_are_copied_with_the_next_sync(
        self, leader: FakeLeader, env: SeededEnv
    ) -> None:
        with follow(leader, env, overrides={"retention.ms": "5000"}) as follower:
            leader.create("u")
            leader.directory.add_partitions("t", 3)
            leader.directory.alter_config("t", {"segment.bytes": "4000000"})
            leader.put(b"x", topic="t", partition=2)
            follower.sync()
            catch_up(follower)
            assert list(follower.copies) == [
                *(TopicPartition("t", n) for n in range(3)),
                *[TopicPartition("u", 0)],
            ]
            here = seen(env).topic("t")
            assert here.given["segment.bytes"] == "4000000"
            assert here.given["retention.ms"] == "5000"
            assert values(follower.copies[TopicPartition("t", 2)].log) == [b"x"]
            leader.directory.alter_config("t", {"segment.bytes": None})
            follower.sync()
            assert "segment.bytes" not in seen(env).topic("t").given

    @pytest.mark.parametrize("source", ConfigSource)
    def test_settings_of_the_leaders_brokers_are_copied_and_defaults_are_not(
        self, leader: FakeLeader, env: SeededEnv, source: ConfigSource
    ) -> None:
        def mangle(_request: ReceivedRequest, answer: "DataclassInstance") -> "DataclassInstance":
            if isinstance(answer, DescribeConfigsResponse):
                for config in answer.results[0].configs:
                    if config.name == "max.message.bytes":
                        config.value, config.config_source = "9999", source
            return answer

        leader.mangle = mangle
        with follow(leader, env):
            given = seen(env).topic("t").given
        expected = None if source in UNSET else "9999"
        assert given.get("max.message.bytes") == expected

    def test_only_selected_topics_are_followed(self, leader: FakeLeader, env: SeededEnv) -> None:
        for name in ("flights", "flights-old", "other"):
            leader.create(name)
        with follow(leader, env, patterns=("flights*",)) as follower:
            assert {name.topic for name in follower.copies} == {"flights", "flights-old"}
        with pytest.raises(UnknownTopic, match="did you mean flights"):
            follow(leader, env, patterns=("flight",))

    def test_another_topic_of_the_same_name_is_refused_and_nothing_is_changed(
        self, leader: FakeLeader, env: SeededEnv
    ) -> None:
        leader.put(b"a")
        copy_all(leader, env)
        leader.directory.delete_topic("t")
        leader.create("t")
        with pytest.raises(InconsistentTopicId, match="recreated at the leader"):
            follow(leader, env)
        with standby_dir(env) as directory:
            assert values(directory.log("t", 0)) == [b"a"]

    def test_the_copy_of_a_deleted_topic_stays(self, leader: FakeLeader, env: SeededEnv) -> None:
        leader.create("u")
        leader.put(b"a")
        with follow(leader, env) as follower:
            catch_up(follower)
            leader.directory.delete_topic("t")
            follower.sync()
            assert [name.topic for name in follower.copies] == ["u"]
            assert any("the copied records stay" in note for note in follower.notes)
            assert values(seen(env).reader("t", 0)) == [b"a"]

    @pytest.mark.parametrize("versions", [{}, {9: 7, 1: 12, 10: 3}])
    def test_group_offsets(
        self, leader: FakeLeader, env: SeededEnv, versions: dict[int, int]
    ) -> None:
        leader.versions = versions
        leader.put(b"a", b"b")
        leader.groups = {"g": [GroupOffset("t", 0, 1)], "none": []}
        copy_all(leader, env)
        found = read_group_offsets(env.files, STANDBY)
        assert found is not None
        assert found.groups == {"g": [GroupOffset("t", 0, 1)]}

    @pytest.mark.parametrize("topic", ["u", OFFSETS_TOPIC])
    def test_the_file_of_group_offsets_says_whether_their_topic_is_copied(
        self, leader: FakeLeader, env: SeededEnv, topic: str
    ) -> None:
        leader.put(b"a")
        leader.create(topic)
        with follow(leader, env, patterns=("t", topic)) as follower:
            catch_up(follower)
        found = read_group_offsets(env.files, STANDBY)
        assert found is not None
        assert found.topic_copied == (topic == OFFSETS_TOPIC)

    @pytest.mark.parametrize("versions", [{}, {9: 7, 1: 12, 10: 3}])
    def test_offsets_of_a_group_that_moves_are_read_from_its_new_coordinator(
        self, leader: FakeLeader, env: SeededEnv, versions: dict[int, int]
    ) -> None:
        leader.nodes, leader.moved_to, leader.versions = 2, 1, versions
        leader.put(b"a", b"b")
        leader.groups = {"g": [GroupOffset("t", 0, 1)]}
        copy_all(leader, env)
        found = read_group_offsets(env.files, STANDBY)
        assert found is not None
        assert found.groups == {"g": [GroupOffset("t", 0, 1)]}

    def test_groups_of_a_loading_coordinator_are_copied_later(
        self, leader: FakeLeader, env: SeededEnv
    ) -> None:
        leader.put(b"a")
        leader.groups = {"g": [GroupOffset("t", 0, 1)]}
        leader.groups_error = 14
        with follow(leader, env) as follower:
            catch_up(follower)
            assert values(seen(env).reader("t", 0)) == [b"a"]
            assert read_group_offsets(env.files, STANDBY) is None
            leader.groups_error = 0
            follower.sync()
            found = read_group_offsets(env.files, STANDBY)
        assert found is not None
        assert list(found.groups) == ["g"]

    def test_a_directory_has_one_follower_at_a_time(
        self, leader: FakeLeader, env: SeededEnv
    ) -> None:
        with follow(leader, env), pytest.raises(DirectoryLocked):
            follow(leader, env)


class TestDivergence:
    def test_records_that_the_leader_never_had_are_truncated(
        self, leader: FakeLeader, env: SeededEnv
    ) -> None:
        """A promoted standby and its old leader both append, with equal leader epochs by chance."""
        leader.put(b"a", b"b")
        copy_all(leader, env)
        with standby_dir(env) as directory:
            directory.log("t", 0).append([NewRecord(key=b"k", value=b"ours", timestamp=1)])
        leader.restart()
        leader.put(b"c")
        assert leader.log().leader_epoch == 1
        with follow(leader, env) as follower:
            catch_up(follower)
            copy = follower.copies[P0]
            assert [(cut.start, cut.end) for cut in copy.counts.truncations] == [(2, 3)]
            assert values(copy.log) == [b"a", b"b", b"c"]
            assert any("offset 2 was truncated" in note for note in follower.notes)
            assert log_bytes(copy.log) == log_bytes(leader.log())

    def test_a_standby_is_truncated_to_a_leaders_shorter_log_of_the_same_epoch(
        self, leader: FakeLeader, env: SeededEnv
    ) -> None:
        leader.put(b"a")
        leader.put(b"b")
        copy_all(leader, env)
        leader.log().truncate_to(1)
        leader.restart()
        leader.put(b"c")
        copy_all(leader, env)
        with standby_dir(env) as directory:
            assert values(directory.log("t", 0)) == [b"a", b"c"]

    def test_a_running_follower_detects_a_divergence_by_its_fetch(
        self, leader: FakeLeader, env: SeededEnv
    ) -> None:
        leader.put(b"a")
        leader.put(b"b")
        with follow(leader, env) as follower:
            catch_up(follower)
            leader.log().truncate_to(1)
            leader.restart()
            leader.put(b"c", b"d")
            for _ in range(8):
                follower.round()
                env.clock.advance(300)
            assert values(follower.copies[P0].log) == [b"a", b"c", b"d"]

    def test_missing_records_are_no_divergence(self, leader: FakeLeader, env: SeededEnv) -> None:
        """The leader deletes records that the standby has; the standby deletes them later."""
        leader.put(b"a")
        leader.put(b"b")
        copy_all(leader, env)
        leader.log().deleter.advance_start(2)
        leader.put(b"c")
        with follow(leader, env) as follower:
            catch_up(follower)
            log = follower.copies[P0].log
            assert values(log) == [b"a", b"b", b"c"]
            log.deleter.advance_start(3)
        leader.put(b"d")
        with follow(leader, env) as follower:
            catch_up(follower)
            counts = follower.copies[P0].counts
            assert (counts.truncations, counts.lost) == ([], [])
            assert values(follower.copies[P0].log) == [b"d"]

    def test_records_deleted_before_they_were_copied_are_reported(
        self, leader: FakeLeader, env: SeededEnv
    ) -> None:
        leader.put(b"a")
        copy_all(leader, env)
        leader.put(b"b")
        leader.put(b"c")
        leader.log().deleter.advance_start(2)
        with follow(leader, env) as follower:
            catch_up(follower)
            copy = follower.copies[P0]
            assert values(copy.log) == [b"a", b"c"]
            assert [(lost.start, lost.end) for lost in copy.counts.lost] == [(1, 2)]

    def test_lost_records_are_reported_once_while_the_leader_has_no_others(
        self, leader: FakeLeader, env: SeededEnv
    ) -> None:
        leader.put(b"a")
        copy_all(leader, env)
        leader.put(b"b", b"c")
        leader.log().deleter.advance_start(3)
        with follow(leader, env) as follower:
            for _ in range(5):
                follower.round()
                env.clock.advance(300)
            lost = follower.copies[P0].counts.lost
            assert [(offsets.start, offsets.end) for offsets in lost] == [(1, 3)]

    def test_a_new_standby_begins_at_the_leaders_start(
        self, leader: FakeLeader, env: SeededEnv
    ) -> None:
        """If the leader's log starts inside a batch, the standby copies the whole batch."""
        leader.put(b"a", b"b", b"c")
        leader.put(b"d")
        leader.log().deleter.advance_start(1)
        copy_all(leader, env)
        with standby_dir(env) as directory:
            log = directory.log("t", 0)
            assert (log.log_start_offset, log.log_end_offset) == (1, 4)
            assert values(log) == [b"b", b"c", b"d"]

    def test_an_empty_leader_that_begins_late(self, leader: FakeLeader, env: SeededEnv) -> None:
        leader.put(b"a", b"b")
        leader.log().deleter.advance_start(2)
        copy_all(leader, env)
        leader.put(b"c")
        copy_all(leader, env)
        with standby_dir(env) as directory:
            log = directory.log("t", 0)
            assert (log.log_start_offset, values(log)) == (2, [b"c"])
