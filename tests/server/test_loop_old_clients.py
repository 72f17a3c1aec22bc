"""A message set of an old client does not block the event loop even if it decompresses to MBs."""

import gc
import random
from collections.abc import Iterator
from threading import Event, Thread

import pytest
from tests.server.loop_meter import HELD_MAX_S, MeteredBroker, metered_broker
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.clients.raw import RawClient, produce_request
from tests.worlds.records.legacy_sets import build_legacy_set
from tests.worlds.waiting import until_kernels_loaded, until_so

from tidelog.protocol.messages import PRODUCE
from tidelog.record.builder import build_batch
from tidelog.types import Codec, NewRecord

NOW = 1_700_000_000_000
COUNT = 200_000
ONE = b"one"
LARGE = {"max.message.bytes": "20000000"}
# By message format: the version of Produce that sends the format.
VERSIONS = {0: 1, 1: 2}
PLAIN, ANEW = "plain", "anew"


@pytest.fixture(scope="module")
def metered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MeteredBroker]:
    settings = {**SETTINGS, "tidelog.legacy.clients": "true", "log.retention.ms": "-1"}
    path = str(tmp_path_factory.mktemp("metered"))
    with pytest.MonkeyPatch.context() as patch, metered_broker(path, patch, settings) as running:
        running.broker.call(
            lambda node: node.log_dir.create_topic(PLAIN, partitions=1, config=LARGE)
        )
        anew = {"compression.type": "lz4", **LARGE}
        running.broker.call(lambda node: node.log_dir.create_topic(ANEW, partitions=1, config=anew))
        until_kernels_loaded()
        until_so(lambda: running.broker.call(lambda node: node.partitions.has_kernels))
        yield running


@pytest.fixture(scope="module")
def sets() -> dict[int, bytes]:
    """Return a compressed message set of 13 MB for each format."""
    draw = random.Random(7)
    values = (draw.randbytes(20).hex().encode() for _ in range(COUNT))
    records = [NewRecord(value=value, timestamp=NOW + at) for at, value in enumerate(values)]
    built = [build_legacy_set(records, magic=magic, codec=Codec.GZIP) for magic in VERSIONS]
    return dict(zip(VERSIONS, map(bytes, built), strict=True))


def end_of(client: RawClient, topic: str) -> int:
    return client.list_offsets(topic, -1)[0].offset


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("topic", [PLAIN, ANEW])
def test_a_set_that_decompresses_to_much_leaves_the_loop_to_others(
    metered: MeteredBroker, sets: dict[int, bytes], topic: str, magic: int
) -> None:
    held = []
    request = produce_request(topic, sets[magic])
    with RawClient(metered.broker.bootstrap_servers) as client:
        for _ in range(3):
            end = end_of(client, topic)
            gc.collect()
            gc.freeze()
            metered.held_s()
            answer = client.ask(PRODUCE, VERSIONS[magic], request)
            held.append(metered.held_s())
            (said,) = answer.responses[0].partition_responses
            assert (said.error_code, said.base_offset) == (0, end)
            assert end_of(client, topic) == end + COUNT
    assert min(held) < HELD_MAX_S


@pytest.mark.parametrize("magic", [0, 1])
def test_a_set_is_appended_at_the_log_end_despite_other_appends(
    metered: MeteredBroker, sets: dict[int, bytes], magic: int
) -> None:
    """A wrapper of format 0 contains absolute offsets, so the broker has to rewrite it."""
    topic, is_done, sent = f"shared{magic}", Event(), list[int]()
    metered.broker.call(lambda node: node.log_dir.create_topic(topic, partitions=1, config=LARGE))
    one = build_batch([NewRecord(value=ONE, timestamp=NOW)])

    def append() -> None:
        with RawClient(metered.broker.bootstrap_servers) as client:
            while not is_done.is_set():
                sent.append(client.produce(topic, bytes(one)).base_offset)

    other = Thread(target=append)
    other.start()
    try:
        with RawClient(metered.broker.bootstrap_servers) as client:
            until_so(lambda: bool(sent))
            said = client.ask(PRODUCE, VERSIONS[magic], produce_request(topic, sets[magic]))
    finally:
        is_done.set()
        other.join()
    first = said.responses[0].partition_responses[0].base_offset
    with RawClient(metered.broker.bootstrap_servers) as client:
        records = client.read_all(topic)
    assert [each.offset for each in records] == list(range(len(sent) + COUNT))
    old = [each.offset for each in records if each.value != ONE]
    assert old == list(range(first, first + COUNT))
