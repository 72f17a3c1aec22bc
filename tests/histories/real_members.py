"""Real members of a group: each copies its partitions and commits their offsets, exactly once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, TypeAlias

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from tests.histories.history import Partition, Poll, Transaction, copy_of
from tests.histories.real_clients import POLL_S, RealWriter, reading
from tests.histories.transactors import Confluent

# Session timeout in ms: the other members wait this long for a member that left while the broker
# was down.
SESSION_MS: Final = 3_000
POLLING_MS: Final = 6_000
BEAT_MS: Final = 100
COPIED_AT_ONCE: Final = 6
# Number of polls after which a member leaves the group and a new member replaces it.
LOOKS_OF_A_LIFE: Final = range(5, 60)

Settings: TypeAlias = Mapping[str, str | int]
# If the position is unknown or out of range, the consumer reports an error instead of starting
# again at the beginning.
COMMON: Final[Settings] = {"max_poll_interval_ms": POLLING_MS, "auto_offset_reset": "error"}
CLASSIC: Final[Settings] = {
    **COMMON,
    "group_protocol": "classic",
    "session_timeout_ms": SESSION_MS,
    "heartbeat_interval_ms": BEAT_MS,
}
EAGER: Final[Settings] = {**CLASSIC, "partition_assignment_strategy": "range"}
COOPERATIVE: Final[Settings] = {**CLASSIC, "partition_assignment_strategy": "cooperative-sticky"}
CONSUMER: Final[Settings] = {**COMMON, "group_protocol": "consumer"}
UNIFORM: Final[Settings] = {**CONSUMER, "group_remote_assignor": "uniform"}
RANGE: Final[Settings] = {**CONSUMER, "group_remote_assignor": "range"}
Pair: TypeAlias = tuple[Settings, Settings]
# Members that share a group.
PAIRS: Final[Sequence[Pair]] = (
    (EAGER, EAGER),
    (UNIFORM, UNIFORM),
    (COOPERATIVE, COOPERATIVE),
    (RANGE, RANGE),
    (UNIFORM, RANGE),
)
BOTH_PROTOCOLS: Final[Sequence[Pair]] = ((EAGER, RANGE), (COOPERATIVE, UNIFORM))


@dataclass
class RealMember(RealWriter):
    """Reads its partitions; in one transaction writes copies and commits the group's offsets.

    Attributes:
        settings: Settings of its membership.
    """

    settings: Settings = field(default_factory=dict)
    _gathers: "count[int]" = field(default_factory=count)
    _rows: dict[Partition, list[tuple[int, int]]] = field(default_factory=dict)
    _is_lost: bool = False
    # The member's group metadata at the last assignment. Between assignments librdkafka may report
    # no member. Commits must name the member: a broker accepts offsets without a member from any
    # client, even if other members have the partitions.
    _identity: object = None

    def run_copies(self, is_over: Callable[[], bool]) -> None:
        """Copy until `is_over()` is true; when a member leaves, a new member takes its place."""
        self.open()
        while not is_over():
            self.progress.await_broker()  # joining or leaving without a broker would block
            self._live(is_over)
        self.finish()

    def _live(self, is_over: Callable[[], bool]) -> None:
        """Copy as one member, until this member leaves or a transaction has failed.

        The next member then gets the group's offset from the broker.
        """
        consumer = reading(self.bootstrap, self.names.group, **self.settings)
        self._is_lost = False
        consumer.subscribe(
            [self.names.topic],
            on_assign=self._begin,
            on_revoke=self._forget,
            on_lost=self._forget,
        )
        for _ in range(self.random.choice(LOOKS_OF_A_LIFE)):
            if is_over() or not self._copy(consumer):
                break
        self.progress.await_broker()
        consumer.close()

    def _begin(self, consumer: Consumer, _: list[TopicPartition]) -> None:
        self._identity = consumer.consumer_group_metadata()

    def _forget(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        """Drop the records of partitions that this member has lost: other members copy them."""
        for each in partitions:
            self._rows.pop((each.topic, each.partition), None)

    def _copy(self, consumer: Consumer) -> bool:
        """Copy the received records in one transaction; return whether the member continues."""
        self._gather(consumer)
        if self._is_lost:
            self._rows.clear()
            return False
        rows = {partition: list(some) for partition, some in self._rows.items()}
        self._rows.clear()
        for partition, some in rows.items():
            facts = (next(self._gathers), self.history.now(), partition)
            self.history.polls.append(Poll(self.name, *facts, some[0][0], some, some[-1][0] + 1))
        return not rows or self.transact(lambda found: self._copy_rows(found, rows))

    def _gather(self, consumer: Consumer) -> None:
        """Receive records; the assignment may change meanwhile."""
        message, left = consumer.poll(POLL_S), COPIED_AT_ONCE
        while message is not None:
            self._take(message)
            left -= 1
            message = consumer.poll(0) if left else None

    def _take(self, message: Message) -> None:
        """Add a record, or mark the position as lost; the client handles all other errors."""
        error = message.error()
        if error is not None:
            self._is_lost |= error.code() == KafkaError._AUTO_OFFSET_RESET
            return
        partition = (message.topic() or "", message.partition() or 0)
        row = (message.offset() or 0, int(message.value() or b""))
        self._rows.setdefault(partition, []).append(row)

    def _copy_rows(
        self, transaction: Transaction, rows: Mapping[Partition, list[tuple[int, int]]]
    ) -> bool:
        attempt = self.history.now()
        for partition, some in rows.items():
            copies = [copy_of(value, attempt) for _, value in some]
            self.write(transaction, self.names.copies[partition], copies)
        ends = [TopicPartition(*partition, some[-1][0] + 1) for partition, some in rows.items()]
        assert isinstance(self.producer, Confluent)
        self.producer.send_offsets(ends, self._identity)
        self.progress.tell()
        return self.random.random() < 0.9
