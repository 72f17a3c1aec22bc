"""Deleting a topic removes its committed offsets, but not those of a later topic of that name."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest
from tests.unit.server.groups.test_shards import committed, running_node, until_loaded
from tests.unit.server.loops import on_a_loop
from tests.worlds.brokers.topics import delete_topic

from tidelog.env import Env, FileSystem, ManualClock, OsFileSystem
from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import TXN_OFFSET_COMMIT
from tidelog.protocol.messages.group_offsets import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from tidelog.protocol.wire import NO_UUID
from tidelog.server.api.context import RequestContext
from tidelog.server.api.group_offsets import txn_offset_commit
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.groups.committed_offsets import CommittedOffset, DeletedTopic
from tidelog.server.groups.coordinator import PENDING_CHECK_MS
from tidelog.server.groups.modern_group import ShareGroup
from tidelog.server.groups.offset_commits import Commit
from tidelog.server.groups.requests import CommitRequest, HeartbeatRequest
from tidelog.server.partitions.partition import TransactionEnd
from tidelog.types import TopicPartition

TOPIC = "flights"
NAMES = [f"group {number}" for number in range(10)]
FIRST, LAST = NAMES[0], NAMES[-1]
OLD_ID, OTHER_ID = UUID(int=1), UUID(int=2)


class Ticking(ManualClock):
    """A clock that advances at each read, so that a slice of work handles only a few groups."""

    def monotonic_ms(self) -> int:
        self.advance(1)
        return super().monotonic_ms()


@dataclass
class World:
    """A broker with one topic, and a clock that tests move."""

    node: Node
    clock: Ticking

    @property
    def topic_id(self) -> UUID:
        """Return the id of the present topic."""
        info = self.node.topics.find(TOPIC)
        assert info is not None
        assert info.topic_id is not None
        return info.topic_id

    def make_anew(self) -> None:
        """Delete the topic and create a new one with its name; the cleanup runs later."""
        delete_topic(self.node, TOPIC)
        self.node.log_dir.create_topic(TOPIC)

    def commit(self, offset: int, *groups: str, topic_id: UUID | None = None) -> None:
        """Commit an offset of the present topic, or of a topic with another id."""
        kept = [Commit(TOPIC, 0, offset, topic_id=topic_id or self.topic_id)]
        for name in groups:
            said = self.node.groups.commits.commit(CommitRequest(group_id=name), kept)
            assert not said.is_done or said.value == [ErrorCode.NONE]

    async def begin(self, offset: int, producer_id: int) -> None:
        """Commit an offset for the last group in a transaction that stays open."""
        groups, producer = self.node.groups, (producer_id, 0)
        guard = groups.topic.guard(LAST, producer, raises_epochs=False).guard
        asked = CommitRequest(group_id=LAST, is_transactional=True)
        kept = [Commit(TOPIC, 0, offset, topic_id=self.topic_id)]
        said = groups.commits.commit_in_transaction(asked, producer, guard, kept)
        assert await said == [ErrorCode.NONE]

    async def end(self, producer_id: int, *, commit: bool) -> None:
        """End a producer's transaction."""
        groups, end = self.node.groups, TransactionEnd(producer_id, 0, 0, commit)
        number = groups.topic.number_of(LAST)
        assert await groups.end_transaction(number, end) is ErrorCode.NONE

    def finish(self) -> None:
        """Run all work that is due soon."""
        for _ in NAMES:
            self.clock.advance(PENDING_CHECK_MS)
            self.node.timers.run_due()

    def left(self, names: Iterable[str] = NAMES) -> dict[str, int]:
        """Return the committed offsets by group."""
        found = {name: committed(self.node.groups, name) for name in names}
        return {name: offset for name, offset in found.items() if offset is not None}


@asynccontextmanager
async def world(path: Path, files: FileSystem | None = None) -> AsyncIterator[World]:
    """Start a broker on the directory, which may have the state of an earlier broker."""
    clock = Ticking(1_700_000_000_000)
    async with running_node(path, Env(clock=clock, files=files or OsFileSystem())) as node:
        await node.groups.topic.ensure_topic()
        await until_loaded(node.groups)
        if node.topics.find(TOPIC) is None:
            node.log_dir.create_topic(TOPIC)
        yield World(node, clock)


async def left_after_restart(path: Path) -> dict[str, int]:
    async with world(path) as it:
        return it.left()


@on_a_loop
async def test_offsets_committed_for_a_new_topic_stay(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        it.commit(5, *NAMES)
        it.make_anew()
        assert LAST in it.left()
        assert FIRST not in it.left()  # the first slice of the removal is done
        it.commit(42, FIRST, LAST)
        it.finish()
        assert it.left() == {FIRST: 42, LAST: 42}
    assert await left_after_restart(tmp_path) == {FIRST: 42, LAST: 42}


@on_a_loop
async def test_offsets_without_an_id_or_with_an_earlier_id_are_removed(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        it.commit(5, FIRST, topic_id=NO_UUID)
        it.commit(6, LAST, topic_id=OLD_ID)
        it.make_anew()
        it.finish()
        assert it.left() == {}
    assert await left_after_restart(tmp_path) == {}


def test_offsets_of_the_present_topic_stay_after_the_clock_is_set_back() -> None:
    gone = DeletedTopic(TOPIC, OLD_ID, 1000)
    assert gone.owns(CommittedOffset(1, commit_ms=2000, topic_id=OLD_ID), present=OTHER_ID)
    assert not gone.owns(CommittedOffset(1, commit_ms=900, topic_id=OTHER_ID), present=OTHER_ID)
    # This commit is later than the deletion. It is for a new topic that was deleted, too.
    assert not gone.owns(CommittedOffset(1, commit_ms=1001, topic_id=OTHER_ID), present=None)
    # Commits in old formats have no topic id.
    assert gone.owns(CommittedOffset(1, commit_ms=1000), present=OTHER_ID)
    assert not gone.owns(CommittedOffset(1, commit_ms=1001), present=OTHER_ID)


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_for_a_new_topic_has_its_way(tmp_path: Path, commit: bool) -> None:
    """A tombstone for the old topic's offset would also remove the new topic's pending offset."""
    left = {LAST: 42} if commit else {}

    @on_a_loop
    async def story(path: Path) -> None:
        async with world(path) as it:
            it.commit(5, *NAMES)
            it.make_anew()
            await it.begin(42, 7)
            it.finish()
            assert it.left(NAMES[:-1]) == {}
            await it.end(7, commit=commit)
            it.finish()
            assert it.left() == left
        assert await left_after_restart(path) == left

    story(tmp_path)


@on_a_loop
async def test_a_transaction_for_the_former_topic_restores_no_offsets(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        it.commit(4, *NAMES)
        await it.begin(5, 7)
        it.make_anew()
        it.commit(42, LAST)
        it.finish()
        await it.end(7, commit=True)
        assert it.left() == {LAST: 42}
    assert await left_after_restart(tmp_path) == {LAST: 42}


@on_a_loop
async def test_pending_offsets_of_a_deleted_topic_are_removed(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.begin(5, 7)
        it.make_anew()
        it.finish()
        assert not it.node.groups.pending.has_group(LAST)
        await it.end(7, commit=True)
        assert it.left() == {}
    assert await left_after_restart(tmp_path) == {}


@on_a_loop
async def test_a_transaction_for_the_former_topic_may_end_after_one_for_the_new(
    tmp_path: Path,
) -> None:
    async with world(tmp_path) as it:
        it.commit(4, *NAMES[:-1])
        await it.begin(5, 7)
        it.make_anew()
        await it.begin(42, 8)
        await it.end(7, commit=True)
        it.finish()
        assert it.left() == {}
        await it.end(8, commit=True)
        assert it.left() == {LAST: 42}
    assert await left_after_restart(tmp_path) == {LAST: 42}


@pytest.mark.parametrize("is_new", [True, False])
def test_a_topic_may_be_deleted_while_the_transaction_coordinator_responds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """The transaction's commit belongs to the deleted topic; the new topic's offset stays."""

    @on_a_loop
    async def story(path: Path) -> None:
        async with world(path) as it:

            async def verify(*asked: Iterable[TopicPartition], add: bool) -> object:
                it.make_anew() if is_new else delete_topic(it.node, TOPIC)
                it.finish()
                if is_new:
                    it.commit(42, LAST)
                return dict.fromkeys(asked[-1], ErrorCode.NONE)

            it.node.log_dir.create_topic("ships")
            monkeypatch.setattr(it.node.transactions, "verify_or_add", verify)
            assert await offered(it, 7, TOPIC, "ships") == {
                TOPIC: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                "ships": ErrorCode.NONE,
            }
            await it.end(7, commit=True)
            assert it.left() == ({LAST: 42} if is_new else {})
            group = it.node.groups.find(LAST)
            assert group is not None
            assert set(group.offsets.topics()) - {TOPIC} == {"ships"}

    story(tmp_path)


async def offered(it: World, producer_id: int, *topics: str) -> dict[str, int]:
    """Commit offsets for the last group in a transaction; return error codes by topic."""
    place = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=5, committed_metadata=None
    )
    request = TxnOffsetCommitRequest(
        transactional_id="writer",
        group_id=LAST,
        producer_id=producer_id,
        producer_epoch=0,
        member_id="",
        group_instance_id=None,
        topics=[TxnOffsetCommitRequestTopic(name=name, partitions=[place]) for name in topics],
    )
    facts = ClientInfo(1, "127.0.0.1")
    context = RequestContext(it.node, TXN_OFFSET_COMMIT, 5, "test", facts)
    told = await txn_offset_commit(context, request)
    return {topic.name: topic.partitions[0].error_code for topic in told.topics}


@on_a_loop
async def test_a_share_group_continues_with_a_new_topic(tmp_path: Path) -> None:
    async def beat(it: World, epoch: int) -> int:
        topics = None if epoch else frozenset({TOPIC})
        asked = HeartbeatRequest(group_id=LAST, member_id="A", epoch=epoch, topics=topics)
        told = await it.node.groups.shares.heartbeat(asked)
        assert told.code is ErrorCode.NONE
        return told.epoch

    async with world(tmp_path) as it:
        it.commit(5, *NAMES[:-1])
        epoch = await beat(it, 0)
        it.make_anew()
        await beat(it, epoch)
        it.finish()
        group = it.node.groups.find(LAST)
        assert isinstance(group, ShareGroup)
        assert set(group.shared) == {it.topic_id}
