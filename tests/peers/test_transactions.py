"""The same transactions in Apache Kafka 4.3 and in our broker get the same results.

Transactions are committed, aborted, open and timed out, in both protocols, and read at both
isolation levels. Producer ids differ between brokers, so the tests number them in the order in
which they appear. A marker's timestamp is the time of the broker's clock.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
from tests.worlds.clients.raw import RawClient
from tests.worlds.clients.transacting import Transacting, producers, until
from tests.worlds.kafka.broker import Broker
from tests.worlds.waiting import until_so

import tidelog
from tidelog.env import os_env
from tidelog.protocol.messages import FETCH
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from tidelog.record.batch_walk import walk
from tidelog.record.builder import build_batch
from tidelog.types import NewRecord

pytestmark = pytest.mark.kafka

FREE = {
    "retention.ms": "-1",
    "message.timestamp.before.max.ms": str(2**63 - 1),
    "index.interval.bytes": "300",
}
FIRST_MS = 1_600_000_000_000
# A response's timestamp above this belongs to a marker, which has the time of a broker's clock.
PAST_MS = 1_700_000_000_000
PLAIN_RUN, SWEEP = 30, 600
QUICK_TIMEOUTS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "200"}
Said = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Side:
    """One broker, a client of it, and a function that creates a topic."""

    bootstrap: str
    client: RawClient
    create: Callable[[str, dict[str, str]], None]


@pytest.fixture(scope="module")
def sides(
    kafka_broker: Broker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Side, Side]]:
    """The sides of Kafka and of our broker."""
    folder = tmp_path_factory.mktemp("transactions")

    def create_theirs(topic: str, config: dict[str, str]) -> None:
        settings = {key.replace(".", "_"): value for key, value in config.items()}
        kafka_broker.create_topic(topic, 1, **settings)

    with (
        tidelog.broker(str(folder), settings=QUICK_TIMEOUTS) as ours,
        RawClient(kafka_broker.bootstrap) as theirs,
        RawClient(ours.bootstrap_servers) as client,
    ):

        def create_ours(topic: str, config: dict[str, str]) -> None:
            ours.call(lambda node: node.log_dir.create_topic(topic, partitions=1, config=config))

        yield (
            Side(kafka_broker.bootstrap, theirs, create_theirs),
            Side(ours.bootstrap_servers, client, create_ours),
        )


@pytest.fixture
def count(request: pytest.FixtureRequest) -> int:
    """Number of steps of a script."""
    return SWEEP if request.config.getoption("--sweep") else PLAIN_RUN


def make(side: Side, topic: str, **more: str) -> None:
    side.create(topic, FREE | more)
    until(lambda: side.client.list_offsets(topic, -1)[0].error_code, lambda code: code == 0)


def record(number: int) -> NewRecord:
    """Return a record; times increase and decrease."""
    step = (number * 7) % 11
    return NewRecord(key=b"k%d" % number, value=b"v", timestamp=FIRST_MS + number * 10 + step)


# -- a broker's responses ----------------------------------------------------------------------


class Names:
    """Numbers producer ids in the order in which the ids appear."""

    def __init__(self, *ids: int) -> None:
        self._known = {each: number for number, each in enumerate(ids)}

    def __call__(self, producer_id: int) -> int:
        return -1 if producer_id < 0 else self._known.setdefault(producer_id, len(self._known))


def fetch(
    client: RawClient, topic: str, offset: int, isolation: int, limit: int = 1 << 20
) -> PartitionData:
    wanted = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=limit)
    message = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        isolation_level=isolation,
        topics=[FetchTopic(topic=topic, partitions=[wanted])],
        rack_id="",
    )
    return client.ask(FETCH, 12, message).responses[0].partitions[0]


def fetch_result(data: PartitionData, name: Names) -> Said:
    """Return the compared parts of a response, without a batch that is cut off at the end.

    Aborted transactions after the returned records are left out. Kafka may list them, but a client
    does not need them.
    """
    records = bytes(data.records or b"")  # type: ignore[arg-type] # what is read is one buffer
    batches = [
        (
            batch.base_offset,
            batch.last_offset,
            name(batch.producer_id),
            batch.producer_epoch,
            batch.base_sequence,
            batch.is_transactional,
            batch.is_control,
            min(batch.max_timestamp, PAST_MS),
        )
        for batch in walk(records)
    ]
    aborted = data.aborted_transactions
    return (
        data.error_code,
        (data.high_watermark, data.last_stable_offset, data.log_start_offset),
        batches,
        None
        if aborted is None
        else sorted(
            (name(each.producer_id), each.first_offset)
            for each in aborted
            if batches and each.first_offset <= batches[-1][1]
        ),
    )


def lookup_result(client: RawClient, topic: str, when: int, isolation: int) -> Said:
    found = client.list_offsets(topic, when, isolation_level=isolation)[0]
    return found.error_code, found.offset, min(found.timestamp, PAST_MS), found.leader_epoch


def described_producers(client: RawClient, topic: str, name: Names) -> list[Said]:
    return sorted(
        (
            name(each.producer_id),
            each.producer_epoch,
            each.last_sequence,
            min(each.last_timestamp, PAST_MS),
            each.coordinator_epoch >= 0,
            each.current_txn_start_offset,
        )
        for each in producers(client, topic).values()
    )


def everything(client: RawClient, topic: str, name: Names, times: Sequence[int]) -> list[Said]:
    """Return the results of all requests about the partition."""
    said: list[Said] = [tuple(described_producers(client, topic, name))]
    end = client.list_offsets(topic, -1)[0].offset
    for isolation in (0, 1):
        for offset in range(end + 2):
            for limit in (1, 1 << 20):
                data = fetch(client, topic, offset, isolation, limit)
                said.append(("fetch", isolation, offset, limit, *fetch_result(data, name)))
        for when in (-1, -2, -3, -4, *times, PAST_MS, 2**62):
            looked = lookup_result(client, topic, when, isolation)
            said.append(("lookup", isolation, when, *looked))
    return said


# -- scripts -----------------------------------------------------------------------------------


class Script:
    """Random steps of a few producers. With one seed, both brokers get the same steps."""

    def __init__(self, side: Side, topic: str, seed: int) -> None:
        self._random = random.Random(seed)
        self.topic = topic
        self._client = side.client
        self._writers = [
            Transacting(side.client, f"{topic}-{number}", has_own_epochs=number % 2 == 1)
            for number in range(4)
        ]
        self._open: set[int] = set()
        self.times: list[int] = []

    def run(self, count: int) -> list[Said]:
        """Take `count` random steps; return the response to each of them."""
        said: list[Said] = [("init", writer.init(), writer.epoch) for writer in self._writers]
        said.extend(self._step() for _ in range(count))
        return said

    @property
    def ids(self) -> list[int]:
        return [writer.producer_id for writer in self._writers]

    def _step(self) -> Said:
        number = self._random.randrange(len(self._writers))
        writer = self._writers[number]
        kind = self._random.choices(
            ("produce", "commit", "abort", "plain", "init"), (8, 3, 3, 2, 1)
        )
        match kind[0]:
            case "produce":
                return self._produce(number, writer)
            case "plain":
                found = self._client.produce(self.topic, _plain(self._next()))
                return "plain", found.error_code, found.base_offset
            case "init":
                code = writer.init()
                self._open.discard(number)
                self._until_marked(writer)
                return "init", code, writer.epoch
            case end:
                return self._end(number, writer, commit=end == "commit")

    def _next(self) -> list[NewRecord]:
        made = [record(len(self.times) + more) for more in range(self._random.randrange(1, 4))]
        self.times += [each.timestamp or 0 for each in made]
        return made

    def _produce(self, number: int, writer: Transacting) -> Said:
        codes: list[int] = []
        if not writer.has_own_epochs and number not in self._open:
            if self._random.random() < 0.8:
                codes = writer.add(self.topic, 0)
                self._open.add(number)
        else:
            self._open.add(number)
        found = writer.produce(self.topic, self._next())
        return "produce", number, codes, found.error_code, found.base_offset, found.log_start_offset

    def _end(self, number: int, writer: Transacting, *, commit: bool) -> Said:
        code = writer.end(commit=commit)
        if not code:
            self._open.discard(number)
            self._until_marked(writer)
        return "end", number, commit, code, writer.epoch

    def _until_marked(self, writer: Transacting) -> None:
        """Wait for the marker, and until the clock shows another millisecond.

        Otherwise two markers could have the same time. The lookup of the record with the largest
        time would then find the first one.
        """
        writer.until_ended(self.topic)
        clock = os_env().clock
        now_ms = clock.now_ms()
        until_so(lambda: clock.now_ms() > now_ms, "the clock goes on")


def _plain(records: list[NewRecord]) -> bytes:
    return bytes(build_batch(records))


@pytest.mark.parametrize("seed", range(2))
def test_responses_and_records_of_transactions_are_equal(
    sides: tuple[Side, Side], seed: int, count: int
) -> None:
    told = []
    topic = f"scripted-transactions-{seed}"
    for side in sides:
        make(side, topic)
        script = Script(side, topic, seed)
        steps = script.run(count)
        name = Names(*script.ids)
        times = sorted({when + step for when in script.times[::5] for step in (-1, 0, 1)})
        told.append((steps, everything(side.client, topic, name, times)))
    for kafkas, ours in zip(*(steps for steps, _ in told), strict=True):
        assert kafkas == ours
    for kafkas, ours in zip(*(answers for _, answers in told), strict=True):
        assert kafkas == ours
