"""Consumer groups of a cluster: who is in them, what they committed, and commits for them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from tidelog.cluster import codes
from tidelog.cluster.client import Client
from tidelog.cluster.view import Committed, Group, GroupListing, Member
from tidelog.error_codes import ErrorCode
from tidelog.errors import ClusterFailure, GroupActive, UnknownGroup
from tidelog.types import NO_LEADER_EPOCH, TopicPartition

if TYPE_CHECKING:
    import confluent_kafka as ck
    from confluent_kafka.admin._group import (
        ConsumerGroupDescription,
        ConsumerGroupListing,
        MemberDescription,
    )


_Answer = TypeVar("_Answer")

_DEAD: Final = "DEAD"


def describe(client: Client, name: str) -> Group:
    """A consumer group with its members; raises UnknownGroup, ClusterFailure."""

    def ask() -> "ConsumerGroupDescription":
        asked = client.admin().describe_consumer_groups([name], request_timeout=client.timeout_s)
        found: ConsumerGroupDescription = client.results(f"describe group {name}", asked)[name]
        return found

    try:
        found = client.answer(ask, unready=codes.COORDINATOR_COMES)
    except ClusterFailure as error:
        if error.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
            raise _unknown(client, name) from error
        raise
    if found.state.name == _DEAD:
        raise _unknown(client, name)
    return Group(name, _words(found.state.name), tuple(_member(member) for member in found.members))


def _await_coordinator(client: Client, name: str) -> None:
    """Return when the group's coordinator answers.

    Where a broker says that it is not there yet, librdkafka's question for committed offsets ends
    the whole process (2.16 follows a null pointer); the question for a group's members only fails.
    """

    def ask() -> None:
        asked = client.admin().describe_consumer_groups([name], request_timeout=client.timeout_s)
        client.results(f"describe group {name}", asked)

    try:
        client.answer(ask, unready=codes.COORDINATOR_COMES)
    except ClusterFailure as error:
        if error.error_code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise


def names(client: Client) -> list[str]:
    """All consumer groups that the cluster tells us of, sorted; raises ClusterFailure."""
    return sorted(group.group_id for group in _listed(client))


def _listed(client: Client) -> "list[ConsumerGroupListing]":
    return client.answer(lambda: _list_once(client), unready=codes.COORDINATOR_COMES)


def _list_once(client: Client) -> "list[ConsumerGroupListing]":
    operation = "list groups"
    asked = client.admin().list_consumer_groups(request_timeout=client.timeout_s)
    found = client.results(operation, {operation: asked})[operation]
    for error in found.errors:
        # The library's documents promise KafkaException; what it hands out is what that carries.
        told = error.args[0] if isinstance(error, Exception) else error
        raise client.failure(operation, told)
    return list(found.valid)


def listings(client: Client) -> list[GroupListing]:
    """All consumer groups that the cluster tells us of, by name; raises ClusterFailure."""
    return [
        GroupListing(group.group_id, _words(group.state.name), _words(group.type.name))
        for group in sorted(_listed(client), key=lambda group: group.group_id)
    ]


def delete(client: Client, names: Sequence[str]) -> None:
    """Delete groups with all that they committed.

    Raises:
        UnknownGroup: There is no such group.
        GroupActive: It has members.
        ClusterFailure: The cluster refuses, or can't be reached. Other groups may be deleted.
    """
    operation = f"delete {', '.join(names)}"
    asked = client.admin().delete_consumer_groups(list(names), request_timeout=client.timeout_s)
    for name, future in asked.items():
        try:
            client.results(operation, {name: future})
        except ClusterFailure as error:
            if error.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                raise _unknown(client, name) from error
            if error.error_code == ErrorCode.NON_EMPTY_GROUP:
                raise GroupActive(f"group {name} has members ({error.reason})") from error
            raise


def _words(name: str) -> str:
    """A state or kind as Kafka writes it, `PREPARING_REBALANCE` as `PreparingRebalance`."""
    return name.replace("_", " ").title().replace(" ", "")


def _unknown(client: Client, name: str) -> UnknownGroup:
    return UnknownGroup(f"{client.bootstrap} has no consumer group {name}")


def _member(found: "MemberDescription") -> Member:
    places = found.assignment.topic_partitions
    partitions = sorted(TopicPartition(p.topic, p.partition) for p in places)
    return Member(found.member_id, found.client_id, found.host, tuple(partitions))


def committed(
    client: Client, group: str, partitions: Iterable[TopicPartition] | None
) -> dict[TopicPartition, Committed | None]:
    """What a group committed, of all its partitions where None; None for no commit."""
    from confluent_kafka import ConsumerGroupTopicPartitions
    from confluent_kafka import TopicPartition as Place

    places = None if partitions is None else [Place(p.topic, p.partition) for p in partitions]
    if places is not None and not places:
        return {}
    request = ConsumerGroupTopicPartitions(group, places)
    operation = f"read the offsets of group {group}"
    _await_coordinator(client, group)

    def ask() -> dict[TopicPartition, Committed | None]:
        asked = client.admin().list_consumer_group_offsets(
            [request], request_timeout=client.timeout_s
        )
        found = client.results(operation, asked)[group].topic_partitions or []
        return {_partition(p): _committed(client, operation, p) for p in found}

    return client.answer(ask, unready=codes.COORDINATOR_COMES)


def _partition(place: "ck.TopicPartition") -> TopicPartition:
    return TopicPartition(place.topic, place.partition)


def _committed(client: Client, operation: str, place: "ck.TopicPartition") -> Committed | None:
    if place.error is not None:
        raise client.failure(operation, place.error)
    if place.offset < 0:
        return None
    epoch = place.leader_epoch
    known = None if epoch == NO_LEADER_EPOCH else epoch
    return Committed(place.offset, known)


def commit(client: Client, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
    """Commit for a group without members; the broker itself refuses where there are some.

    Raises:
        GroupActive: Members are there. Nothing was changed.
        ClusterFailure: Some partitions may have been committed; the text names one that wasn't.
    """
    from confluent_kafka import ConsumerGroupTopicPartitions

    if not offsets:
        return
    places = [_place(partition, offset) for partition, offset in offsets.items()]
    operation = f"commit for group {group}"

    def ask() -> None:
        request = ConsumerGroupTopicPartitions(group, places)
        asked = client.admin().alter_consumer_group_offsets(
            [request], request_timeout=client.timeout_s
        )
        for place in client.results(operation, asked)[group].topic_partitions or []:
            if place.error is not None:
                raise client.failure(f"{operation} at {_partition(place)}", place.error)

    try:
        client.answer(ask, unready=codes.COORDINATOR_COMES)
    except ClusterFailure as error:
        if error.error_code in codes.OVERRULED:
            raise GroupActive(f"group {group} has active members ({error.reason})") from error
        raise


def _place(partition: TopicPartition, offset: Committed) -> "ck.TopicPartition":
    from confluent_kafka import TopicPartition as Place

    if offset.leader_epoch is None:
        return Place(partition.topic, partition.partition, offset.offset)
    return Place(
        partition.topic, partition.partition, offset.offset, leader_epoch=offset.leader_epoch
    )
