"""Leaders that violate the protocol give typed errors, and affect no other partition."""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, cast

import pytest
from tests.faults import SeededEnv
from tests.unit.standby.test_follow import STANDBY, follow, standby_dir, values
from tests.worlds.clusters.fake_leader import FakeLeader, catch_up

from tidelog.errors import (
    ClusterFailure,
    CorruptBatch,
    CorruptMessage,
    InvalidTopic,
    TidelogError,
    UnsupportedVersion,
)
from tidelog.protocol.messages import fetch as fe
from tidelog.protocol.messages import metadata as md
from tidelog.protocol.requests import ReceivedRequest
from tidelog.record.builder import build_batch
from tidelog.types import INT32_MAX, NewRecord, TopicPartition

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T0, U0 = TopicPartition("t", 0), TopicPartition("u", 0)
Change = Callable[[fe.PartitionData], None]


def one(offset: int, epoch: int = 0) -> bytes:
    return bytes(
        build_batch([NewRecord(value=b"x", timestamp=1)], base_offset=offset, leader_epoch=epoch)
    )


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes((data[-1] ^ 1,))


def cut(keep: int, data: bytes) -> bytes:
    """Return a response with only the first `keep` bytes after its length."""
    return min(keep, len(data) - 4).to_bytes(4, "big") + data[4 : 4 + keep]


@pytest.fixture
def leader() -> FakeLeader:
    found = FakeLeader()
    for topic in ("t", "u"):
        found.create(topic)
        found.put(b"a", topic=topic)
        found.put(b"b", topic=topic)
    return found


def lie_about_t(leader: FakeLeader, change: Change) -> None:
    """Change the fetched data of topic `t`."""
    wanted = leader.directory.topic("t").topic_id

    def mangle(_request: ReceivedRequest, answer: "DataclassInstance") -> "DataclassInstance":
        if isinstance(answer, fe.FetchResponse):
            for topic in answer.responses:
                if topic.topic_id == wanted:
                    for partition in topic.partitions:
                        change(partition)
        return answer

    leader.mangle = mangle


RECORDS: list[tuple[str, bytes, type[TidelogError], str]] = [
    ("bad CRC", flipped(one(0)), CorruptBatch, "crc|CRC|checksum"),
    ("a batch cut short", one(0)[:-3], CorruptBatch, "without a whole batch"),
    ("garbage", b"\xff" * 200, CorruptBatch, "must be at least 14"),
    (
        "offsets running back",
        one(1) + one(0),
        CorruptBatch,
        "offset 1 where 0 is expected, and the next batch begins at offset 0",
    ),
    (
        "an epoch running back",
        one(0, 0) + one(1, -1),
        CorruptBatch,
        "leader epoch -1 after one with leader epoch 0",
    ),
    ("an epoch from nowhere", one(0, INT32_MAX), CorruptBatch, "own epoch is only 0"),
    ("a negative offset", one(-7), CorruptBatch, "offset -7, but offset 0 was requested"),
]


class TestRecords:
    @pytest.mark.parametrize(
        ("data", "kind", "text"), [row[1:] for row in RECORDS], ids=[row[0] for row in RECORDS]
    )
    def test_invalid_records_stop_that_partition_only(
        self,
        leader: FakeLeader,
        env: SeededEnv,
        data: bytes,
        kind: type[TidelogError],
        text: str,
    ) -> None:
        lie_about_t(leader, lambda found: setattr(found, "records", data))
        with follow(leader, env) as follower:
            catch_up(follower)
            assert list(follower.problems) == [T0]
            with pytest.raises(kind, match=text):
                raise follower.problems[T0]
            assert values(follower.copies[U0].log) == [b"a", b"b"]
            leader.mangle = lambda _request, answer: answer
            good = follower.copies[T0].log.log_end_offset == 0
            follower.sync()
            catch_up(follower)
            assert not good or values(follower.copies[T0].log) == [b"a", b"b"]

    def test_offsets_below_the_requested_ones(self, leader: FakeLeader, env: SeededEnv) -> None:
        with follow(leader, env) as follower:
            catch_up(follower)
            leader.put(b"c")
            lie_about_t(leader, lambda found: setattr(found, "records", one(0)))
            follower.round()
            with pytest.raises(CorruptBatch, match="offset 2 was requested"):
                raise follower.problems[T0]
            assert values(follower.copies[T0].log) == [b"a", b"b"]

    def test_promises_without_records_end(self, leader: FakeLeader, env: SeededEnv) -> None:
        def promise(found: fe.PartitionData) -> None:
            found.high_watermark, found.records = 1 << 60, None

        lie_about_t(leader, promise)
        with (
            follow(leader, env) as follower,
            pytest.raises(ClusterFailure, match="sends no records"),
        ):
            catch_up(follower)

    @pytest.mark.parametrize("code", [1, 87, 29, -1])
    def test_errors_that_never_end(self, leader: FakeLeader, env: SeededEnv, code: int) -> None:
        lie_about_t(leader, lambda found: setattr(found, "error_code", code))
        with follow(leader, env) as follower:
            catch_up(follower)
            assert isinstance(follower.problems[T0], ClusterFailure)
            assert follower.copies[U0].is_caught_up

    def test_divergence_that_its_epochs_deny(self, leader: FakeLeader, env: SeededEnv) -> None:
        diverging = fe.DivergingEpoch(epoch=0, end_offset=1)
        lie_about_t(leader, lambda found: setattr(found, "diverging_epoch", diverging))
        with follow(leader, env) as follower:
            catch_up(follower)
            with pytest.raises(ClusterFailure, match="the logs diverge at offset 1"):
                raise follower.problems[T0]

    def test_refusals_before_a_good_response_are_forgotten(
        self, leader: FakeLeader, env: SeededEnv
    ) -> None:
        diverging = fe.DivergingEpoch(epoch=0, end_offset=1)
        with follow(leader, env) as follower:
            for number in range(9):
                leader.put(b"%d" % number)
                lie_about_t(leader, lambda found: setattr(found, "diverging_epoch", diverging))
                follower.round()
                leader.mangle = lambda _request, answer: answer
                catch_up(follower)
                assert not follower.problems
            assert len(values(follower.copies[T0].log)) == 11

    def test_append_times_running_back_are_left_out(
        self, leader: FakeLeader, env: SeededEnv
    ) -> None:
        """Decreasing append times are dropped: an append time may be unknown, but never wrong."""
        lie_about_t(leader, lambda found: setattr(found, "append_times", [0, 9_000, 1, 5_000]))
        with follow(leader, env) as follower:
            catch_up(follower)
            assert not follower.problems
            log = follower.copies[T0].log
            assert values(log) == [b"a", b"b"]
            assert [log.append_time_of(offset) for offset in (0, 1)] == [9_000, None]

    def test_a_partition_that_was_not_requested_is_an_error(
        self, leader: FakeLeader, env: SeededEnv
    ) -> None:
        lie_about_t(leader, lambda found: setattr(found, "partition_index", 9))
        with (
            follow(leader, env) as follower,
            pytest.raises(ClusterFailure, match="was not requested"),
        ):
            catch_up(follower)


class TestMessages:
    @pytest.mark.parametrize(
        ("wire", "text"),
        [
            (lambda data: b"\x7f\xff\xff\xff" + data[4:], "frame of 2147483647 bytes"),
            (lambda data: b"\xff\xff\xff\xff" + data[4:], "frame of -1 bytes"),
            (lambda data: data[:-1], "closed the connection"),
            (lambda data: data[:4] + b"\0\0\0\x63" + data[8:], "response to request 99"),
            (
                lambda data: data[:4] + data[4:12] + b"\xff" * (len(data) - 12),
                "the response is invalid",
            ),
        ],
    )
    def test_broken_frames(
        self, leader: FakeLeader, env: SeededEnv, wire: Callable[[bytes], bytes], text: str
    ) -> None:
        with follow(leader, env) as follower:
            catch_up(follower)
            leader.wire = wire
            with pytest.raises(ClusterFailure, match=text):
                follower.round()
            leader.wire = lambda data: data
            leader.put(b"c")
            env.clock.advance(300)
            catch_up(follower)
            assert values(follower.copies[T0].log) == [b"a", b"b", b"c"]

    def test_every_cut_of_every_response_is_a_typed_error(self, env: SeededEnv) -> None:
        leader = FakeLeader()
        leader.create("t")
        leader.put(b"a")
        for keep in range(0, 60, 3):
            leader.wire = partial(cut, keep)
            with pytest.raises(TidelogError):
                follow(leader, env)

    def test_a_broker_that_is_too_old(self, leader: FakeLeader, env: SeededEnv) -> None:
        leader.versions = {1: 11}
        with (
            follow(leader, env) as follower,
            pytest.raises(UnsupportedVersion, match="Fetch from 12"),
        ):
            catch_up(follower)


def _renamed(name: str) -> Callable[[md.MetadataTopic], md.MetadataTopic]:
    return lambda topic: dataclasses.replace(topic, name=name)


class TestTopics:
    @pytest.mark.parametrize(
        ("change", "kind"),
        [
            (_renamed("../../etc"), InvalidTopic),
            (_renamed(""), InvalidTopic),
            (
                lambda topic: dataclasses.replace(
                    topic, partitions=[md.MetadataPartition(partition_index=INT32_MAX)]
                ),
                CorruptMessage,
            ),
            (lambda topic: dataclasses.replace(topic, partitions=[]), CorruptMessage),
            (
                lambda topic: dataclasses.replace(topic, topic_id=md.MetadataTopic().topic_id),
                CorruptMessage,
            ),
        ],
    )
    def test_invalid_names_and_numbers(
        self,
        leader: FakeLeader,
        env: SeededEnv,
        change: Callable[[md.MetadataTopic], md.MetadataTopic],
        kind: type[TidelogError],
    ) -> None:
        def mangle(_request: ReceivedRequest, answer: "DataclassInstance") -> "DataclassInstance":
            if isinstance(answer, md.MetadataResponse):
                answer.topics = [change(topic) for topic in answer.topics]
            return answer

        leader.mangle = mangle
        with pytest.raises(kind):
            follow(leader, env)
        with standby_dir(env) as directory:
            assert list(directory.topics()) == []

    def test_settings_that_we_do_not_know_are_named(
        self, leader: FakeLeader, env: SeededEnv
    ) -> None:
        from tidelog.protocol.messages import configs as cf

        def mangle(request: ReceivedRequest, answer: "DataclassInstance") -> "DataclassInstance":
            if request.api.name == "DescribeConfigs":
                for result in cast("cf.DescribeConfigsResponse", answer).results:
                    result.configs.append(
                        cf.DescribedConfig(name="future.thing", value="1", config_source=1)
                    )
            return answer

        leader.mangle = mangle
        with follow(leader, env) as follower:
            assert any("future.thing=1 was not copied" in note for note in follower.notes)
        assert env.files.exists(STANDBY)
