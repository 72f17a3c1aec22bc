"""Third-party clients on our broker and on Kafka get the same results.

The expected results are computed from the records; the tests with Kafka confirm them.
"""

import pytest
from tests.server.clients.adapters import Client
from tests.server.clients.conftest import Served
from tests.server.clients.logs import SHAPES, START_MS, STEP_MS
from tests.worlds.clients.raw import LIST_OFFSETS_VERSION, RawClient
from tests.worlds.waiting import Patience

from tidelog.protocol.messages import LIST_OFFSETS
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidelog.record.builder import build_batch
from tidelog.types import NewRecord

# Times to look up: before all records, of the first and of the fourth record, between two records,
# and after all records.
TIMES = (0, START_MS, START_MS + 1, START_MS + 35, START_MS + 3 * STEP_MS, START_MS + 2_000)
NO_MATCH = (0, -1, -1)
INVALID_REQUEST = 42
UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
RECORDS = 40


def test_writes_and_reads(served: Served, client: Client, topic: str) -> None:
    values = [f"value {number}" for number in range(RECORDS)]
    client.produce(served.bootstrap, topic, values)
    assert client.consume(served.bootstrap, topic) == values


@pytest.mark.parametrize("shape", SHAPES)
def test_reads_and_looks_up_in_every_format(served: Served, client: Client, shape: str) -> None:
    log = SHAPES[shape]
    if client.name != "aiokafka" or len(log.formats) < 2:
        # aiokafka misreads a response with batches of several formats, even if Kafka sends it.
        assert client.consume(served.bootstrap, shape) == log.values
    told = client.look_up(served.bootstrap, shape, TIMES)
    assert (told.begin, told.end) == (0, log.end)
    assert told.found == [log.expected(time) for time in TIMES]


def test_joins_a_group_that_grows_and_shrinks(served: Served, client: Client, topic: str) -> None:
    with RawClient(served.bootstrap) as raw:
        _fill(raw, topic)
    told = client.rebalance(served.bootstrap, topic, f"group-{topic}", RECORDS)
    assert told.sizes == [4, 2, 2, 4]
    assert told.values == {f"{number % 4}:{number}" for number in range(RECORDS)}


def _fill(raw: RawClient, topic: str) -> None:
    for number in range(RECORDS):
        value = b"%d:%d" % (number % 4, number)
        batch = bytes(build_batch([NewRecord(value=value, timestamp=START_MS)]))
        patience = Patience()
        while raw.produce(topic, batch, number % 4).error_code:
            patience.check("the partition has a leader")


def test_a_partition_requested_twice_is_refused(served: Served) -> None:
    once = ListOffsetsPartition(partition_index=0, timestamp=START_MS)
    other = ListOffsetsTopic(name="format1", partitions=[once])
    topics = [ListOffsetsTopic(name="format2", partitions=[once, once]), other]
    with RawClient(served.bootstrap) as raw:
        asked = ListOffsetsRequest(topics=topics)
        answer = raw.ask(LIST_OFFSETS, LIST_OFFSETS_VERSION, asked)
    told = {
        topic.name: [(one.error_code, one.timestamp, one.offset) for one in topic.partitions]
        for topic in answer.topics
    }
    assert told == {
        "format2": [(INVALID_REQUEST, -1, -1)],
        "format1": [(0, START_MS, 0)],
    }


@pytest.mark.parametrize("version", [1, 5, 7, 8, 9, 10, 11])
def test_times_below_zero(served: Served, version: int) -> None:
    """A negative time is an error, or has a special meaning from a certain request version on."""
    told = {}
    with RawClient(served.bootstrap) as raw:
        for value in range(-8, 0):
            once = ListOffsetsPartition(partition_index=0, timestamp=value)
            asked = ListOffsetsRequest(topics=[ListOffsetsTopic(name="mixed", partitions=[once])])
            one = raw.ask(LIST_OFFSETS, version, asked).topics[0].partitions[0]
            told[value] = (one.error_code, one.timestamp, one.offset)
    unknown = (35, -1, -1)
    assert told == {
        -1: (0, -1, 9),
        -2: (0, -1, 0),
        -3: (0, START_MS + 8 * STEP_MS, 8) if version >= 7 else unknown,
        -4: (0, -1, 0) if version >= 8 else unknown,
        -5: NO_MATCH if version >= 9 else unknown,
        -6: NO_MATCH if version >= 11 else unknown,
        -7: unknown,
        -8: unknown,
    }


def test_a_log_without_times_differs_from_one_without_a_match(served: Served) -> None:
    """If the log's format stores no times, tidelog responds with an error.

    Kafka 4.3 responds that no record matches, as for a log with times.
    """
    with RawClient(served.bootstrap) as raw:
        found = {
            topic: raw.list_offsets(topic, START_MS + 2_000)[0]
            for topic in ("format0", "format1", "mixed", "empty")
        }
    told = {name: (one.error_code, one.timestamp, one.offset) for name, one in found.items()}
    timeless = (UNSUPPORTED_FOR_MESSAGE_FORMAT, -1, -1) if served.is_ours else NO_MATCH
    assert told == {
        "format0": timeless,
        "format1": NO_MATCH,
        "mixed": NO_MATCH,
        "empty": NO_MATCH,
    }
