"""Offsets of groups: permitted commits, kept values, and expiry."""

from tests.worlds.brokers.groups import GROUP, REBALANCE_MS, SESSION_MS, World

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.group_records import SUBSCRIPTION, ConsumerProtocolSubscription
from tidelog.server.groups.classic_group import GroupState, subscribed_topics
from tidelog.server.groups.offset_commits import Commit
from tidelog.server.groups.requests import CommitRequest, MemberRef
from tidelog.server.partitions.partition import TransactionEnd
from tidelog.server.runtime.reply import Reply
from tidelog.types import INT64_MAX, MINUTE_MS

RETENTION_MS = 10_080 * MINUTE_MS
READS_FLIGHTS = SUBSCRIPTION.write(0, ConsumerProtocolSubscription(topics=["flights"]))
READS_SHIPS = SUBSCRIPTION.write(0, ConsumerProtocolSubscription(topics=["ships"]))


def reader(world: World, subscription: bytes = READS_FLIGHTS) -> None:
    """Create a stable group with one member that reads a topic."""
    reply = world.ask_join(protocols=[("range", subscription)], session_ms=1_800_000)
    world.assign(world.join_all([reply]))
    assert world.group.state is GroupState.STABLE


class TestPermittedCommits:
    def test_any_client_may_commit_for_a_group_without_members(self) -> None:
        world = World()
        assert world.commit(7) is ErrorCode.NONE
        assert world.committed == 7
        assert world.group.state is GroupState.EMPTY
        assert world.group.protocol_type is None

    def test_members_of_this_generation_only(self) -> None:
        world = World()
        (member,) = world.form(1)
        assert world.commit(1) is ErrorCode.UNKNOWN_MEMBER_ID
        assert world.commit(2, member) is ErrorCode.NONE
        world.ask_join()
        assert world.commit(3, member) is ErrorCode.NONE
        again = world.ask_join(member.member_id).value
        assert world.commit(4, member) is ErrorCode.ILLEGAL_GENERATION
        assert world.commit(5, again) is ErrorCode.REBALANCE_IN_PROGRESS
        assert world.committed == 3

    def test_group_that_does_not_exist(self) -> None:
        world = World()
        for is_late, code in (
            (True, ErrorCode.GROUP_ID_NOT_FOUND),
            (False, ErrorCode.ILLEGAL_GENERATION),
        ):
            asked = CommitRequest(group_id=GROUP, generation=1, is_late_version=is_late)
            assert world.commits.commit(asked, [Commit("flights", 0, 1)]).value == [code]

    def test_commit_is_a_sign_of_life(self) -> None:
        world = World()
        (member,) = world.form(1)
        for offset in range(4):
            world.wait(SESSION_MS - 1)
            assert world.commit(offset, member) is ErrorCode.NONE

    def test_a_commit_in_a_transaction_needs_no_member(self) -> None:
        world = World()
        world.form(1)
        asked = CommitRequest(group_id=GROUP, is_transactional=True)
        assert world.commits.commit(asked, [Commit("flights", 0, 1)]).value == [ErrorCode.NONE]


class TestKeeping:
    def test_long_text_is_refused_for_its_partition_only(self) -> None:
        world = World(offset_metadata_max_bytes="3")
        commits = [Commit("flights", 0, 1, metadata="long"), Commit("flights", 1, 2)]
        codes = world.commits.commit(CommitRequest(group_id=GROUP), commits).value
        assert codes == [ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.NONE]
        assert world.committed is None

    def test_a_commit_that_cannot_be_written_is_not_kept(self) -> None:
        world = World()
        world.commit(1)
        world.break_disk()
        assert world.commit(2) is ErrorCode.NOT_COORDINATOR
        world.mend_disk()
        assert world.committed == 1

    def test_a_response_waits_until_the_commit_is_durable(self) -> None:
        world = World(tidelog_durability="fsync")
        world.hold_syncs()
        reply: Reply[list[ErrorCode]] = world.commits.commit(
            CommitRequest(group_id=GROUP), [Commit("flights", 0, 1)]
        )
        assert not reply.is_done
        world.sync()
        assert reply.value == [ErrorCode.NONE]

    def test_the_end_of_a_transaction_keeps_a_later_commit_without_one(self) -> None:
        world, producer = World(), (7, 0)
        guard = world.node.groups.topic.guard(GROUP, producer, raises_epochs=False).guard
        asked = CommitRequest(group_id=GROUP, is_transactional=True)
        places = [Commit("flights", number, 5) for number in range(2)]
        said = world.commits.commit_in_transaction(asked, producer, guard, places)
        assert said.value == [ErrorCode.NONE] * 2
        assert world.commit(9) is ErrorCode.NONE
        world.commits.end_transaction(0, TransactionEnd(*producer, 0, commit=True))
        assert world.committed == 9
        other = world.group.offsets.get("flights", 1)
        assert other is not None
        assert other.offset == 5

    def test_restart_keeps_all_of_it(self) -> None:
        world = World()
        place = Commit("flights", 0, 9, 3, "why")
        world.commits.commit(CommitRequest(group_id=GROUP, retention_ms=50), [place])
        before = world.group.offsets.get("flights", 0)
        world.restart()
        after = world.group.offsets.get("flights", 0)
        assert before is not None
        assert after is not None
        assert (after.offset, after.leader_epoch, after.metadata) == (9, -1, "why")
        assert (after.commit_ms, after.expire_ms) == (before.commit_ms, before.commit_ms + 50)


class TestForgetting:
    def expire(self, world: World) -> None:
        for group in tuple(world.node.groups.groups()):
            world.commits.expire(group)

    def test_simple_consumer_s_commit_counts_from_its_time(self) -> None:
        world = World()
        world.commit(1)
        world.wait(RETENTION_MS - 1)
        self.expire(world)
        assert world.committed == 1
        world.wait(1)
        self.expire(world)
        assert world.found is None

    def test_group_with_members_once_counts_from_when_it_became_empty(self) -> None:
        world = World()
        (member,) = world.form(1)
        world.commit(1, member)
        for _ in range(2):
            world.clock.advance(RETENTION_MS)
            world.heartbeat(member)
            self.expire(world)
        assert world.committed == 1
        world.wait(SESSION_MS)
        world.wait(RETENTION_MS - 1)
        self.expire(world)
        assert world.committed == 1
        world.wait(1)
        self.expire(world)
        assert world.found is None
        world.restart()
        assert world.found is None

    def test_own_expiry_of_an_old_commit_counts(self) -> None:
        world = World()
        world.commit(1, retention_ms=500)
        world.restart()
        world.wait(499)
        self.expire(world)
        assert world.committed == 1
        world.wait(1)
        self.expire(world)
        assert world.committed is None

    def test_the_longest_retention_time_keeps_a_commit(self) -> None:
        world = World()
        assert world.commit(1, retention_ms=INT64_MAX) is ErrorCode.NONE
        world.wait(RETENTION_MS)
        world.restart()
        self.expire(world)
        assert world.committed == 1

    def test_offsets_of_an_unsubscribed_topic_expire_in_a_stable_group(self) -> None:
        for subscription, left in ((READS_FLIGHTS, 1), (READS_SHIPS, None)):
            world = World()
            world.commit(1)
            reader(world, subscription)
            world.clock.advance(RETENTION_MS)
            self.expire(world)
            assert world.committed == left
            assert world.group.state is GroupState.STABLE

    def test_no_offset_expires_while_a_group_rebalances(self) -> None:
        world = World()
        world.commit(1)
        reader(world, READS_SHIPS)
        world.ask_join(protocols=[("range", READS_SHIPS)])
        world.clock.advance(RETENTION_MS)
        self.expire(world)
        assert world.committed == 1

    def test_topic_that_was_deleted(self) -> None:
        world = World()
        world.make_topics(flights=1, ships=1)
        asked = CommitRequest(group_id=GROUP)
        world.commits.commit(asked, [Commit("flights", 0, 1), Commit("ships", 0, 2)])
        world.make_topics(ships=1)
        world.restart()
        assert [(topic, found.offset) for topic, _, found in world.group.offsets] == [("ships", 2)]


def test_subscription_is_read_as_far_as_all_versions_agree() -> None:
    lacks_owned_partitions = b"\0\1" + READS_FLIGHTS[2:]
    assert subscribed_topics([READS_SHIPS, lacks_owned_partitions]) == frozenset(
        {"flights", "ships"}
    )
    assert subscribed_topics([READS_FLIGHTS[:-6]]) is None
    assert subscribed_topics([]) == frozenset()


class TestDeleting:
    def test_offsets_of_topics_that_are_not_read(self) -> None:
        world = World()
        world.commit(1)
        reader(world, READS_FLIGHTS)
        deleted = world.commits.delete_offsets(GROUP, [("flights", 0), ("ships", 0)])
        assert isinstance(deleted, Reply)
        assert deleted.value == [ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC, ErrorCode.NONE]
        world.members.leave(GROUP, [_ref(world)])
        deleted = world.commits.delete_offsets(GROUP, [("flights", 0)])
        assert isinstance(deleted, Reply)
        assert deleted.value == [ErrorCode.NONE]
        assert world.committed is None

    def test_refusals(self) -> None:
        world = World()
        assert world.commits.delete_offsets(GROUP, []) is ErrorCode.GROUP_ID_NOT_FOUND
        world.assign(world.join_all([world.ask_join(protocol_type="connect")]))
        assert world.commits.delete_offsets(GROUP, []) is ErrorCode.NON_EMPTY_GROUP
        assert world.commits.delete_group(GROUP).value is ErrorCode.NON_EMPTY_GROUP
        assert world.commits.delete_group("other").value is ErrorCode.GROUP_ID_NOT_FOUND

    def test_group_and_its_offsets(self) -> None:
        world = World()
        (member,) = world.form(1)
        world.commit(1, member)
        world.wait(SESSION_MS + REBALANCE_MS)
        assert world.commits.delete_group(GROUP).value is ErrorCode.NONE
        assert world.found is None
        world.restart()
        assert world.found is None


def _ref(world: World) -> MemberRef:
    return MemberRef(next(iter(world.group.members)))
