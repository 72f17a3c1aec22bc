"""Concurrent histories of real clients, with a broker process that is killed meanwhile.

A history has a topic of two partitions and a topic for copies, a writer for each client library, a
reader of committed records, and two members of a group that copy the records. The histories of a
set share a broker, and their steps are counted together. When the count reaches certain random
numbers, the broker is killed and restarted on its directory.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import count
from pathlib import Path
from random import Random
from typing import Final

from tests.histories.history import History, Outcome, Partition, original_of
from tests.histories.processes import GROUP_KEY, RETRIED, Names
from tests.histories.progress import Progress
from tests.histories.readers import all_in, committed_in, fetch_request
from tests.histories.real_clients import RealReader, RealWriter
from tests.histories.real_members import PAIRS, Pair, RealMember
from tests.histories.transactors import Aiokafka
from tests.worlds.brokers.victims import Nursery, Victim
from tests.worlds.clients.raw import RawClient
from tests.worlds.clients.transacting import find_coordinator, until
from tests.worlds.kafka.broker import free_port
from tests.worlds.waiting import Patience

from tidelog.protocol.messages import CREATE_TOPICS, FETCH, OFFSET_COMMIT, OFFSET_FETCH
from tidelog.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetFetchGroup,
    OffsetFetchRequest,
    OffsetFetchTopic,
)
from tidelog.protocol.messages.topics import CreatableTopic, CreateTopicsRequest

TRANSACTIONS: Final = 5
KILLS: Final = range(2, 5)
# Approximate number of steps of a history, as `Progress` counts them. The kills are spread over
# these steps.
STEPS_OF_A_HISTORY: Final = 60
THREADS_OF_A_HISTORY: Final = 5
# Time limit in seconds; a quiet machine needs only some seconds, a busy one more.
END_S: Final = 240
SETTINGS: Final = {
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "auto.create.topics.enable": "false",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.session.timeout.ms": "1",
    "group.min.session.timeout.ms": "1",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "1",
    "group.consumer.heartbeat.interval.ms": "100",
    "group.consumer.assignment.interval.ms": "0",
}


class Story:
    """One history and its clients."""

    def __init__(
        self, bootstrap: str, seed: int, progress: Progress, pairs: Sequence[Pair]
    ) -> None:
        self.names, self.history = Names(seed), History()
        self._is_given_up = False
        random, values = Random(seed), count(1)

        def parts(name: str) -> tuple[str, Names, History, Random, str, Progress]:
            own = Random(random.random())
            return bootstrap, self.names, self.history, own, name, progress

        self._values = lambda: next(values)
        self._writers = [
            RealWriter(*parts("confluent")),
            RealWriter(*parts("aiokafka"), kind=Aiokafka),
        ]
        self._reader = RealReader(*parts("reader"))
        self._members = [
            RealMember(*parts(f"member-{number}"), settings=settings)
            for number, settings in enumerate(pairs[seed % len(pairs)])
        ]

    def begin(self, pool: ThreadPoolExecutor) -> list[Future[None]]:
        """Start all clients, each in a thread."""
        writing = [pool.submit(each.run, TRANSACTIONS, self._values) for each in self._writers]

        def is_copied() -> bool:
            is_written = all(each.done() for each in writing)
            return self._is_given_up or (is_written and self._is_copied())

        copying = [pool.submit(each.run_copies, is_copied) for each in self._members]
        work = [*writing, *copying]
        reading = pool.submit(self._reader.run, lambda: all(each.done() for each in work))
        return [*work, reading]

    def _is_copied(self) -> bool:
        """Whether all committed values have copies; copies whose commit got no response count."""
        writers = {each.name for each in self._writers}
        written, copied = set[int](), set[int]()
        for each in list(self.history.transactions):
            if each.process in writers and each.outcome is Outcome.COMMITTED:
                written |= {write.value for write in each.writes}
            elif each.process not in writers and each.outcome is not Outcome.ABORTED:
                copied |= {original_of(write.value) for write in each.writes}
        return written <= copied

    def give_up(self) -> None:
        """Stop waiting for copies."""
        self._is_given_up = True

    def finish(self, client: RawClient) -> History:
        """Read all sources and copies from offset 0, after the last transaction has ended."""
        history, copies = self.history, self.names.copies
        for partition in (*copies, *copies.values()):
            history.final[partition] = read_all(client, partition, is_committed=True)
            history.stored[partition] = read_all(client, partition, is_committed=False)
        for source, target in copies.items():
            history.copied[source] = target, committed_offset(client, self.names.group, source)
        return history


def read_all(
    client: RawClient, partition: Partition, *, is_committed: bool
) -> list[tuple[int, int]]:
    """Return a partition's committed records, or all; call it when no transaction is open."""
    found: list[tuple[int, int]] = []
    at, end, patience = 0, 1, Patience()
    while at < end:
        patience.check(f"{partition} from {at} to {end}")
        asked = fetch_request(partition, at, is_committed=is_committed)
        data = client.ask(FETCH, 12, asked).responses[0].partitions[0]
        assert not data.error_code, data
        end = data.high_watermark
        more, at = (committed_in if is_committed else all_in)(data, at)
        found += more
    return found


def commit_beginnings(client: RawClient, names: Names) -> None:
    """Commit offset 0 of each partition for the group, in an ordinary commit.

    Without a committed offset, librdkafka 2.16 may return to the beginning after it has read
    records. At the beginning, librdkafka looks up the start of the partition. If the response is
    late, librdkafka starts a timer for a second lookup, half a second later or when the broker is
    back. The second lookup occurs even if records have been read in between. If the consumer was
    paused meanwhile, librdkafka then continues at the start.
    """
    find_coordinator(client, names.group, GROUP_KEY)
    rows = [
        OffsetCommitRequestPartition(partition_index=number, committed_offset=0)
        for _, number in names.partitions
    ]
    topic = OffsetCommitRequestTopic(name=names.topic, partitions=rows)
    asked = OffsetCommitRequest(group_id=names.group, member_id="", topics=[topic])

    def ask() -> set[int]:
        found = client.ask(OFFSET_COMMIT, 8, asked).topics[0].partitions
        return {row.error_code for row in found}

    assert until(ask, lambda codes: not codes & RETRIED) == {0}


def committed_offset(client: RawClient, group: str, partition: Partition) -> int:
    """Return a group's committed offset in a partition, 0 if there is none.

    If an open transaction contains a commit of this offset, the call waits for the transaction's
    end.
    """
    find_coordinator(client, group, GROUP_KEY)
    wanted = OffsetFetchTopic(name=partition[0], partition_indexes=[partition[1]])
    asked = OffsetFetchRequest(
        groups=[OffsetFetchGroup(group_id=group, topics=[wanted])], require_stable=True
    )

    def ask() -> tuple[int, int]:
        found = client.ask(OFFSET_FETCH, 8, asked).groups[0]
        if found.error_code:
            return found.error_code, -1
        row = found.topics[0].partitions[0]
        return row.error_code, row.committed_offset

    code, offset = until(ask, lambda answer: answer[0] not in RETRIED)
    assert not code, code
    return max(offset, 0)


def create_topics(bootstrap: str, stories: Sequence[Story]) -> None:
    """Create the topics of all histories, and commit their groups' first offsets."""
    wanted = [
        CreatableTopic(name=name, num_partitions=2, replication_factor=1)
        for story in stories
        for name in (story.names.topic, story.names.copy)
    ]
    with RawClient(bootstrap) as client:
        answer = client.ask(CREATE_TOPICS, 5, CreateTopicsRequest(topics=wanted, timeout_ms=60_000))
        assert not any(each.error_code for each in answer.topics), answer
        for story in stories:
            commit_beginnings(client, story.names)


def _options() -> Iterator[str]:
    for name, text in SETTINGS.items():
        yield from ("--set", f"{name}={text}")


def histories(
    nursery: Nursery, folder: Path, first: int, together: int, pairs: Sequence[Pair] = PAIRS
) -> list[History]:
    """Run histories together on one broker, which is killed several times; return the histories.

    Seeds decide the clients' actions and the times of kills; threads decide the rest.
    """
    random, progress, port = Random(first), Progress(), free_port()
    address = f"127.0.0.1:{port}"
    stories = [Story(address, first + number, progress, pairs) for number in range(together)]
    victim = Victim(nursery, folder / "data", *_options())
    with ThreadPoolExecutor(together * THREADS_OF_A_HISTORY) as pool:
        try:
            victim.start_at(port)
            create_topics(address, stories)
            work = [each for story in stories for each in story.begin(pool)]
            for each in work:
                each.add_done_callback(lambda _: progress.tell())
            kills = random.choice(KILLS)
            longest = 2 * STEPS_OF_A_HISTORY * together // (kills + 1)
            for _ in range(kills):
                some = random.randrange(1, longest)
                progress.wait(some, lambda: all(each.done() for each in work))
                with progress.without_broker():
                    victim.kill()
                    victim.start_at(port)
            _await(work, stories)
            with RawClient(address) as client:
                return [story.finish(client) for story in stories]
        finally:
            for story in stories:
                story.give_up()
            victim.stop()


def _await(work: Sequence[Future[None]], stories: Sequence[Story]) -> None:
    """Return when all histories are done; raise a client's error.

    The broker must run until this function returns: even if one client has failed, the other
    clients still have to end their transactions.
    """
    late = wait(work, END_S).not_done
    for story in stories:
        story.give_up()
    wait(work)
    for each in work:
        each.result()
    assert not late, f"{len(late)} clients did not come to an end within {END_S} s"
