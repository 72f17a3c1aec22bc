"""Another process requests a follower's status, a flush, or a promotion."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar, cast

import pytest
from tests.faults import seeded_env
from tests.worlds.clusters.fake_leader import HOST, PORT, FakeLeader, catch_up
from tests.worlds.kafka.groups import Ended, tidelog
from tests.worlds.waiting import Patience

from tidelog.cli.follow import rows
from tidelog.control.client import ControlClient, find_holder
from tidelog.env import Env, ManualClock
from tidelog.errors import CorruptMessage, DirectoryLocked, InvalidRequest
from tidelog.jobs.compact.job import lender
from tidelog.standby.follower import Follower, FollowOptions, Seams
from tidelog.standby.topic_sync import TopicChoice
from tidelog.storage.directory.log_dir import LogDir, LogDirOptions
from tidelog.types import TopicPartition

_Answer = TypeVar("_Answer")
P0 = TopicPartition("t", 0)


@pytest.fixture
def leader() -> FakeLeader:
    found = FakeLeader()
    found.create()
    found.put(b"a", b"b")
    return found


@pytest.fixture
def path(tmp_path: Path) -> str:
    return f"{tmp_path}/standby"


@pytest.fixture
def follower(leader: FakeLeader, path: str) -> Iterator[Follower]:
    """Yield a follower on a real directory, which sockets need."""
    env = Env(clock=ManualClock(seeded_env(1).clock.now_ms()))
    seams = Seams(env=env, connect=leader.connect, pause=lambda _: None)
    options = FollowOptions(choice=TopicChoice(), retain=False, control=True)
    with Follower.open(path, HOST, PORT, options, seams=seams) as found:
        catch_up(found)
        yield found


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


def answered(follower: Follower, asked: "Future[_Answer]") -> _Answer:
    """Run the follower until the request of another thread has a response; return the response.

    If the request promotes the follower, close the follower.
    """
    patience = Patience()
    while not asked.done():
        patience.check()
        if follower.is_promoted:
            follower.close()
            break
        follower.round()
    return asked.result(60)


def ask(path: str, work: Callable[[ControlClient], _Answer]) -> _Answer:
    holder = find_holder(path, timeout_s=60)
    assert holder is not None
    with holder:
        return work(holder)


def test_a_follower_lends_no_compaction_and_its_connection_is_closed(
    follower: Follower, path: str, threads: ThreadPoolExecutor
) -> None:
    assert answered(follower, threads.submit(lender, path)) is None


def test_status_has_the_position_of_every_partition(
    leader: FakeLeader, follower: Follower, path: str, threads: ThreadPoolExecutor
) -> None:
    leader.put(b"c")
    follower.round()
    told = answered(follower, threads.submit(ask, path, ControlClient.status))
    assert told["follows"] == "leader:9092"
    assert told["verbs"] == [
        "status",
        "flush",
        "promote",
        "attach",
        "accept_clock",
        "swap",
        "erase",
    ]
    assert told["partitions"] == [
        {
            "topic": "t",
            "partition": 0,
            "start": 0,
            "end": 3,
            "high_watermark": 3,
            "lag": 0,
            "problem": None,
        }
    ]


def test_a_problem_does_not_repeat_the_partition_beside_it(
    follower: Follower, path: str, threads: ThreadPoolExecutor
) -> None:
    follower.copies[P0].problem = CorruptMessage("t-0: the leader sent t-0 twice")
    told = answered(follower, threads.submit(ask, path, ControlClient.status))
    (partition,) = cast("list[dict[str, object]]", told["partitions"])
    assert partition["problem"] == "the leader sent t-0 twice"
    (row,) = rows(follower)
    assert row[-1] == "the leader sent t-0 twice"


def test_flush_makes_copied_records_durable(
    follower: Follower, path: str, threads: ThreadPoolExecutor
) -> None:
    log = follower.copies[P0].log
    assert log.recovery_point < log.log_end_offset
    answered(follower, threads.submit(ask, path, ControlClient.flush))
    assert log.recovery_point == log.log_end_offset == 2


def test_a_standby_refuses_to_attach_segments(
    follower: Follower, path: str, threads: ThreadPoolExecutor
) -> None:
    asked = threads.submit(ask, path, lambda holder: holder.attach([], commit_id="0" * 32))
    refusal = "is a standby of leader:9092 and accepts only what it copies from there"
    with pytest.raises(InvalidRequest, match=refusal):
        answered(follower, asked)


def test_no_key_is_erased_of_a_standby(
    follower: Follower, path: str, threads: ThreadPoolExecutor
) -> None:
    asked = threads.submit(ask, path, lambda holder: holder.erase("t", b"k", execute=True))
    with pytest.raises(InvalidRequest, match="is a standby of leader:9092: erase the key on the"):
        answered(follower, asked)


def test_an_invalid_argument_is_refused(
    follower: Follower, path: str, threads: ThreadPoolExecutor
) -> None:
    asked = threads.submit(ask, path, lambda holder: holder.call("promote", {"needs_all": 3}))
    with pytest.raises(CorruptMessage, match="needs_all must be true or false, got '3'"):
        answered(follower, asked)
    assert not follower.is_promoted


class TestPromote:
    def test_the_lock_is_released_when_the_command_ends(
        self, follower: Follower, path: str, threads: ThreadPoolExecutor
    ) -> None:
        with pytest.raises(DirectoryLocked):
            LogDir.open(path, options=LogDirOptions(writable=True))

        def promote() -> tuple[Ended, int]:
            """Promote and at once open the directory for appends, as another process does."""
            ended = tidelog("standby", "promote", "--data", path, "--needs-all", "-o", "json")
            with LogDir.open(path, options=LogDirOptions(writable=True)) as log_dir:
                return ended, log_dir.log("t", 0).log_end_offset

        ended, end = answered(follower, threads.submit(promote))
        assert ended.code == 0, ended.err
        assert "no longer follows leader:9092" in ended.err
        assert [row["end"] for row in ended.rows] == [end] == [2]
        assert find_holder(path) is None

    def test_with_needs_all_something_missing_keeps_it_following(
        self, leader: FakeLeader, follower: Follower, path: str, threads: ThreadPoolExecutor
    ) -> None:
        follower.copies[P0].high_watermark = 99  # as if the leader had more records
        asked = threads.submit(
            ask, path, lambda holder: holder.call("promote", {"needs_all": True})
        )
        patience = Patience()
        while not asked.done():
            patience.check()
            follower.answer()
        with pytest.raises(InvalidRequest, match="1 of 1 partition lacks records of"):
            asked.result(60)
        assert not follower.is_promoted
        leader.put(b"c")
        catch_up(follower)
        assert follower.copies[P0].log.log_end_offset == 3


def test_commands(follower: Follower, path: str, threads: ThreadPoolExecutor) -> None:
    arguments = ("standby", "status", "--data", path, "-o", "json")
    told = answered(follower, threads.submit(tidelog, *arguments))
    assert told.code == 0, told.err
    assert json.loads(told.out)["lag"] == 0
    told = answered(follower, threads.submit(tidelog, "standby", "flush", "--data", path))
    assert (told.code, "are synced to disk" in told.err) == (0, True)
    follower.close()
    told = tidelog(*arguments)
    assert told.code == 3
    assert "no follower is running for this directory" in told.err
    assert f"`tidelog follow HOST:PORT --data {path}`" in told.err
    told = tidelog("standby", "status", "--data", f"{path}.missing")
    assert (told.code, told.err) == (3, f"error: {path}.missing: no such directory\n")


def test_a_writer_that_is_no_follower_is_an_error(
    tmp_path: Path, threads: ThreadPoolExecutor
) -> None:
    import tidelog as library

    with library.open(str(tmp_path), writable=True, control=True):
        told = tidelog("standby", "status", "--data", str(tmp_path))
    assert told.code == 3
    assert "is not a follower" in told.err
