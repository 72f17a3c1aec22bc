"""A standby drops records only with proof that the leader has other records at their offsets.

Damaged or missing data in responses changes nothing.
"""

import dataclasses
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import examples
from tests.faults import SeededEnv, seeded_env
from tests.unit.standby.test_follow import STANDBY, follow, log_bytes, seen, values
from tests.worlds.clusters.fake_leader import HOST, PORT, FakeLeader, catch_up

from tidelog.errors import ClusterFailure, CorruptBatch
from tidelog.protocol.messages import classic_groups as gr
from tidelog.protocol.messages import configs as cf
from tidelog.protocol.messages import fetch as fe
from tidelog.protocol.messages import list_offsets as of
from tidelog.protocol.messages import metadata as md
from tidelog.protocol.requests import ReceivedRequest
from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch
from tidelog.remote.leader import FetchLimits
from tidelog.standby.follower import Follower, FollowOptions
from tidelog.storage.directory.broker_files import GroupOffset, read_group_offsets
from tidelog.types import INT64_MAX, NewRecord, TopicPartition

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

P0 = TopicPartition("t", 0)
BASE_AT, EPOCH_AT, CRC_AT = 0, 12, 17
Lie = Callable[["DataclassInstance"], None]


def leader_of_batches(batches: int = 5) -> FakeLeader:
    leader = FakeLeader()
    leader.create("t")
    more(leader, batches)
    return leader


def more(leader: FakeLeader, batches: int = 1, size: int = 4) -> None:
    for _ in range(batches):
        end = leader.log().log_end_offset
        leader.put(*(b"%d" % (end + n) for n in range(size)))


def lie(leader: FakeLeader, kind: type, change: Lie) -> None:
    def mangle(_request: ReceivedRequest, answer: "DataclassInstance") -> "DataclassInstance":
        if isinstance(answer, kind):
            change(answer)
        return answer

    leader.mangle = mangle


def be_honest(leader: FakeLeader) -> None:
    leader.mangle = lambda _request, answer: answer


def copied(leader: FakeLeader, env: SeededEnv) -> None:
    with follow(leader, env) as follower:
        catch_up(follower)
        assert follower.problems == {}
        assert log_bytes(follower.copies[P0].log) == log_bytes(leader.log())


def refused(leader: FakeLeader, env: SeededEnv) -> Exception:
    """Run the follower; check that the standby lost no bytes; return the reported problem."""
    with follow(leader, env) as follower:
        before = log_bytes(follower.copies[P0].log)
        catch_up(follower)
        copy = follower.copies[P0]
        assert log_bytes(copy.log).startswith(before)
        assert copy.counts.truncations == []
        problem = follower.problems[P0]
        assert any(str(problem) in note for note in follower.notes), "it is told"
        return problem


def changed_batch(number: int, at: int, data: bytes) -> Lie:
    """Return a function that writes `data` at byte `at` of the batch with base offset `number`."""

    def change(answer: "DataclassInstance") -> None:
        for topic in cast("fe.FetchResponse", answer).responses:
            for partition in topic.partitions:
                out = bytearray(partition.batches)
                for batch in walk(bytes(out)):
                    if batch.base_offset == number:
                        out[batch.at + at : batch.at + at + len(data)] = data
                partition.records = bytes(out)

    return change


class TestDamage:
    @pytest.mark.parametrize(
        ("at", "data"),
        [
            (CRC_AT, b"\xff\xff\xff\xff"),
            (BASE_AT, struct.pack(">q", 17)),
            (BASE_AT, struct.pack(">q", 0)),
            (BASE_AT, struct.pack(">q", 1 << 40)),
            (BASE_AT + 8, struct.pack(">i", 14)),
            (16, b"\x01"),
            (30, b"\x55"),
        ],
    )
    def test_a_difference_in_the_last_common_batch_drops_no_record(
        self, env: SeededEnv, at: int, data: bytes
    ) -> None:
        leader = leader_of_batches()
        copied(leader, env)
        more(leader)
        leader.restart()
        lie(leader, fe.FetchResponse, changed_batch(16, at, data))
        with follow(leader, env) as follower:
            catch_up(follower)
            copy = follower.copies[P0]
            assert copy.counts.truncations == []
            assert values(copy.log)[:20] == [b"%d" % n for n in range(20)]
        be_honest(leader)
        copied(leader, env)

    @pytest.mark.parametrize("base", [16, 19, 18, 300, 1 << 40, INT64_MAX, -1, 0])
    def test_a_wrong_base_offset_of_the_next_batch_is_refused(
        self, env: SeededEnv, base: int
    ) -> None:
        leader = leader_of_batches()
        copied(leader, env)
        more(leader, 2)
        lie(leader, fe.FetchResponse, changed_batch(20, BASE_AT, struct.pack(">q", base)))
        refused(leader, env)
        be_honest(leader)
        copied(leader, env)

    def test_leader_epoch_of_the_next_batch_below_ours(self, env: SeededEnv) -> None:
        leader = leader_of_batches(1)
        for _ in range(3):
            leader.restart()
            more(leader)
        copied(leader, env)
        more(leader)
        lie(leader, fe.FetchResponse, changed_batch(16, EPOCH_AT, struct.pack(">i", 1)))
        assert "its next record has leader epoch 1" in str(refused(leader, env))
        be_honest(leader)
        copied(leader, env)

    def test_records_before_a_damaged_batch_are_taken(self, env: SeededEnv) -> None:
        leader = leader_of_batches(6)
        lie(leader, fe.FetchResponse, changed_batch(16, CRC_AT, b"\0\0\0\0"))
        with follow(leader, env) as follower:
            catch_up(follower)
            assert isinstance(follower.problems[P0], CorruptBatch)
            assert follower.copies[P0].log.log_end_offset == 16

    def test_damage_of_the_standby_is_no_proof_against_the_leader(self, env: SeededEnv) -> None:
        leader = leader_of_batches()
        copied(leader, env)
        path = f"{STANDBY}/t-0/00000000000000000000.log"
        file = env.files.open(path, write=True)
        file.pwrite(b"\x55", file.size() - 3)
        file.close()
        assert isinstance(refused(leader, env), CorruptBatch)

    @examples(60)
    @given(st.integers(0, 6), st.integers(0, 23), st.integers(0, 61), st.integers(0, 7))
    def test_a_flipped_bit_anywhere_loses_nothing(
        self, number: int, extra: int, at: int, bit: int
    ) -> None:
        env, leader = seeded_env(3), leader_of_batches(3)
        copied(leader, env)
        leader.restart()
        more(leader, 4)

        def flip(answer: "DataclassInstance") -> None:
            for topic in cast("fe.FetchResponse", answer).responses:
                for partition in topic.partitions:
                    out = bytearray(partition.batches)
                    for batch in walk(bytes(out)):
                        if batch.base_offset == number * 4:
                            out[batch.at + (at + extra if at == 61 else at)] ^= 1 << bit
                    partition.records = bytes(out)

        lie(leader, fe.FetchResponse, flip)
        with follow(leader, env) as follower:
            catch_up(follower)
            assert follower.copies[P0].counts.truncations == []
            assert values(follower.copies[P0].log)[:12] == [b"%d" % n for n in range(12)]
        be_honest(leader)
        with follow(leader, env) as follower:
            catch_up(follower)
            copy = follower.copies[P0]
            assert values(copy.log)[:12] == [b"%d" % n for n in range(12)]
            if not 12 <= at < 16 and not 12 <= at + extra < 16:
                assert copy.problem is None
                assert log_bytes(copy.log) == log_bytes(leader.log())


class TestJumps:
    def test_gaps_of_compaction_are_accepted_with_a_batch_after_them(self, env: SeededEnv) -> None:
        leader = leader_of_batches(2)
        for base in (12, 20, 40):  # 8 to 11, 13 to 19 and 21 to 39 were removed by compaction
            batch = build_batch(
                [NewRecord(value=b"x", timestamp=1)], base_offset=base, leader_epoch=0
            )
            leader.log().follower.append(batch)
        for limit in (1, 1 << 20):
            fresh = seeded_env(limit + 5)
            options = FollowOptions(limits=FetchLimits(partition_max_bytes=limit))
            with Follower.open(STANDBY, HOST, PORT, options, seams=leader.seams(fresh)) as follower:
                catch_up(follower)
                assert follower.problems == {}
                assert log_bytes(follower.copies[P0].log) == log_bytes(leader.log())

    def test_gaps_larger_than_a_segment_are_copied_from_one_response(self, env: SeededEnv) -> None:
        leader = leader_of_batches(1)
        for base in (3_000_000_000, 3_000_000_001, 6_000_000_000):
            batch = build_batch(
                [NewRecord(value=b"x", timestamp=1)], base_offset=base, leader_epoch=0
            )
            leader.log().follower.append(batch)
        copied(leader, env)
        with follow(leader, env) as follower:
            log = follower.copies[P0].log
            assert [each.base_offset for each in log.segments] == [0, 3_000_000_000, 6_000_000_000]

    def test_no_record_above_the_high_watermark_is_copied(self, env: SeededEnv) -> None:
        leader = leader_of_batches()

        def lower(answer: "DataclassInstance") -> None:
            for topic in cast("fe.FetchResponse", answer).responses:
                for partition in topic.partitions:
                    partition.high_watermark = 12

        lie(leader, fe.FetchResponse, lower)
        assert "its high watermark is 12" in str(refused(leader, env))
        with follow(leader, env) as follower:
            assert follower.copies[P0].log.log_end_offset == 12
        be_honest(leader)
        copied(leader, env)


def starts_at(offset: int) -> Lie:
    def change(answer: "DataclassInstance") -> None:
        for topic in cast("of.ListOffsetsResponse", answer).topics:
            for partition in topic.partitions:
                partition.offset = offset

    return change


class TestAnswers:
    @pytest.mark.parametrize("start", [1, 12, 20, 1_000_000, -1])
    @pytest.mark.parametrize("before", [0, 2])
    def test_a_wrong_log_start_excludes_no_record(
        self, env: SeededEnv, start: int, before: int
    ) -> None:
        leader = leader_of_batches(before)
        copied(leader, env)
        more(leader, 5 - before)
        lie(leader, of.ListOffsetsResponse, starts_at(start))
        with follow(leader, env) as follower:
            catch_up(follower)
            copy = follower.copies[P0]
            assert copy.problem is not None or log_bytes(copy.log) == log_bytes(leader.log())
            assert copy.counts.lost == []
            assert copy.counts.truncations == []
        be_honest(leader)
        copied(leader, env)

    def test_an_empty_standby_that_began_too_late_starts_again(self, env: SeededEnv) -> None:
        leader = leader_of_batches()
        with follow(leader, env) as follower:
            follower.copies[P0].log.truncator.begin_at(1_000_000)
        copied(leader, env)

    @pytest.mark.parametrize(
        "end", [of.EpochEndOffset(partition=0, leader_epoch=0, end_offset=8), of.EpochEndOffset()]
    )
    @pytest.mark.parametrize("times", [1, 1000])
    def test_a_wrong_end_of_an_epoch_drops_no_record(
        self, env: SeededEnv, end: of.EpochEndOffset, times: int
    ) -> None:
        leader = leader_of_batches()
        copied(leader, env)
        left = [times]

        def change(answer: "DataclassInstance") -> None:
            if left[0] > 0:
                left[0] -= 1
                for topic in cast("of.OffsetForLeaderEpochResponse", answer).topics:
                    topic.partitions = [dataclasses.replace(end, partition=0)]

        lie(leader, of.OffsetForLeaderEpochResponse, change)
        assert "leader" in str(refused(leader, env))
        be_honest(leader)
        copied(leader, env)

    def test_a_leader_from_a_backup_is_refused_until_it_has_other_records(
        self, env: SeededEnv
    ) -> None:
        leader = leader_of_batches()
        copied(leader, env)
        leader.log().truncate_to(8)
        leader.restart()
        assert "restored from a backup" in str(refused(leader, env))
        more(leader)
        with follow(leader, env) as follower:
            catch_up(follower)
            copy = follower.copies[P0]
            assert [(cut.start, cut.end) for cut in copy.counts.truncations] == [(8, 20)]
            assert any("offsets 8 to 19 were truncated" in note for note in follower.notes)
            assert log_bytes(copy.log) == log_bytes(leader.log())

    @pytest.mark.parametrize("kind", [of.ListOffsetsResponse, of.OffsetForLeaderEpochResponse])
    @pytest.mark.parametrize("code", [29, -1, 6, None])
    def test_a_step_that_is_refused_or_left_out_is_reported(
        self, env: SeededEnv, kind: type, code: int | None
    ) -> None:
        leader = leader_of_batches()
        copied(leader, env)
        answers: list[DataclassInstance] = []

        def change(answer: "DataclassInstance") -> None:
            answers.append(answer)
            for topic in cast("of.ListOffsetsResponse", answer).topics:
                for partition in topic.partitions:
                    partition.error_code = code or 0
                if code is None:
                    topic.partitions = []

        lie(leader, kind, change)
        problem = refused(leader, env)
        assert isinstance(problem, ClusterFailure)
        assert problem.error_code == code
        # A request is repeated only if its error may be temporary: NOT_LEADER_OR_FOLLOWER (6).
        assert len(answers) == (4 if code == 6 else 1)
        be_honest(leader)
        copied(leader, env)


class TestSettings:
    def _lie(self, leader: FakeLeader, how: str) -> None:
        def change(answer: "DataclassInstance") -> None:
            found = cast("cf.DescribeConfigsResponse", answer)
            if how == "topic":
                found.results = []
            for result in found.results:
                if how == "all":
                    result.configs = []
                result.configs = [one for one in result.configs if one.name != how]

        lie(leader, cf.DescribeConfigsResponse, change)

    @pytest.mark.parametrize("how", ["topic", "all", "retention.ms"])
    def test_missing_retention_settings_are_kept_and_delete_nothing(
        self, env: SeededEnv, how: str
    ) -> None:
        leader = leader_of_batches()
        copied(leader, env)
        self._lie(leader, how)
        seams = leader.seams(env)
        with Follower.open(STANDBY, HOST, PORT, FollowOptions(), seams=seams) as follower:
            env.clock.advance(10**11)
            for _ in range(4):
                follower.round()
                env.clock.advance(31_000)
            assert seen(env).topic("t").given["retention.ms"] == "-1"
            assert len(values(follower.copies[P0].log)) == 20
            assert any("returned no retention settings" in note for note in follower.notes)

    @pytest.mark.parametrize("how", ["topic", "retention.ms"])
    def test_a_new_topic_waits_for_them(self, env: SeededEnv, how: str) -> None:
        leader = leader_of_batches()
        self._lie(leader, how)
        with follow(leader, env) as follower:
            catch_up(follower)
            assert "returned no retention settings" in str(follower.problems[P0])
            assert list(seen(env).topics()) == []
            be_honest(leader)
            follower.sync()
            catch_up(follower)
            assert follower.problems == {}
            assert len(values(follower.copies[P0].log)) == 20


class TestTopicsAndGroups:
    @pytest.mark.parametrize("is_new_run", [False, True])
    @pytest.mark.parametrize("code", [0, 29])
    def test_a_topic_that_is_not_named_stalls(
        self, env: SeededEnv, is_new_run: bool, code: int
    ) -> None:
        leader = leader_of_batches()
        copied(leader, env)

        def change(answer: "DataclassInstance") -> None:
            found = cast("md.MetadataResponse", answer)
            for topic in found.topics:
                topic.error_code, topic.partitions = code, []
            found.topics = found.topics if code else []

        if is_new_run:
            lie(leader, md.MetadataResponse, change)
        with follow(leader, env) as follower:
            lie(leader, md.MetadataResponse, change)
            follower.sync()
            catch_up(follower)
            assert ("error 29" if code else "no longer has it") in str(follower.problems[P0])
            assert len(values(seen(env).reader("t", 0))) == 20
            be_honest(leader)
            follower.sync()
            catch_up(follower)
            assert follower.problems == {}

    def test_a_partition_that_is_not_named_stalls(self, env: SeededEnv) -> None:
        leader = FakeLeader()
        leader.create("t", partitions=3)
        with follow(leader, env) as follower:

            def change(answer: "DataclassInstance") -> None:
                for topic in cast("md.MetadataResponse", answer).topics:
                    topic.partitions = topic.partitions[:1]

            lie(leader, md.MetadataResponse, change)
            follower.sync()
            catch_up(follower)
            assert sorted(name.partition for name in follower.problems) == [1, 2]

    def test_groups_that_are_not_named_keep_their_offsets(self, env: SeededEnv) -> None:
        leader = leader_of_batches()
        leader.groups = {"g": [GroupOffset("t", 0, 8)], "h": [GroupOffset("t", 0, 4)]}
        copied(leader, env)
        leader.groups["g"] = [GroupOffset("t", 0, 12)]

        def change(answer: "DataclassInstance") -> None:
            found = cast("gr.ListGroupsResponse", answer)
            found.groups = [group for group in found.groups if group.group_id == "g"]

        lie(leader, gr.ListGroupsResponse, change)
        copied(leader, env)
        found = read_group_offsets(env.files, STANDBY)
        assert found is not None
        assert found.groups == {"g": [GroupOffset("t", 0, 12)], "h": [GroupOffset("t", 0, 4)]}
