"""Lookups through templates give the same response bytes as lookups through codecs."""

import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import examples
from tests.unit.server.steps import steps
from tests.worlds.brokers.outcomes import outcome
from tests.worlds.brokers.running import node_fixture

from tidelog.errors import TidelogError
from tidelog.protocol.messages import LIST_OFFSETS
from tidelog.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from tidelog.protocol.requests import ClientConnection, read_request, write_response
from tidelog.server.api.context import RequestContext
from tidelog.server.api.list_offsets import list_offsets
from tidelog.server.api.node import ClientInfo, Node
from tidelog.server.api.table import served_versions
from tidelog.types import NewRecord

TOPIC = "lookups"
LENGTH_BYTES = 4
FACTS = ClientInfo(1, "127.0.0.1")
TIMES = st.sampled_from(
    [-6, -5, -4, -3, -2, -1, 0, 999, 1000, 1500, 2999, 3000, 2**63 - 1, -(2**63)]
)


def take_three(node: Node) -> None:
    """Write records with times 1, 2, 3 s to the first of three partitions; open the first two."""
    node.log_dir.create_topic(TOPIC, partitions=3)
    log = node.partitions.get(TOPIC, 0).log
    log.append([NewRecord(value=b"", timestamp=1000 * n) for n in range(1, 4)])
    node.partitions.get(TOPIC, 0).advance()
    node.partitions.get(TOPIC, 1)


node = node_fixture(prepare=take_three, scope="module")


def request(
    version: int,
    rows: Sequence[tuple[int, int]],
    *,
    topic: str = TOPIC,
    client: str = "somebody",
    epoch: int = -1,
    isolation: int = 0,
) -> bytes:
    """Return a request for offsets at times, by partition."""
    asked = [
        ListOffsetsPartition(partition_index=number, timestamp=time, current_leader_epoch=epoch)
        for number, time in rows
    ]
    message = ListOffsetsRequest(
        topics=[ListOffsetsTopic(name=topic, partitions=asked)], isolation_level=isolation
    )
    pieces = ClientConnection(client).request(LIST_OFFSETS, version, message)
    return b"".join(pieces)[LENGTH_BYTES:]


def response_to(node: Node, frame: bytes, facts: ClientInfo = FACTS) -> bytes | str:
    """Return the response to a frame; if there is none now, return the reason as text."""
    try:
        found = outcome(node, facts, frame)
    except TidelogError as error:
        return f"{type(error).__name__}: {error}"
    return b"".join(found) if isinstance(found, list) else type(found).__name__


def response_by_codecs(node: Node, frame: bytes) -> bytes | str:
    """Return the response by the codecs: decode, handle, encode."""
    try:
        asked = read_request(memoryview(frame), served_versions(legacy=False))
    except TidelogError as error:
        return f"{type(error).__name__}: {error}"
    context = RequestContext(node, asked.api, asked.version, asked.client_id, FACTS)
    assert isinstance(asked.message, ListOffsetsRequest)
    handling = list_offsets(context, asked.message)
    try:
        handling.send(None)
    except StopIteration as end:
        return b"".join(write_response(asked, end.value))
    handling.close()
    return "Reply"


@pytest.mark.parametrize("version", range(1, 12))
@given(
    times=st.lists(TIMES, min_size=1, max_size=6),
    number=st.sampled_from([0, 1, 2, 7]),
    epoch=st.sampled_from([-1, 0, 5]),
    isolation=st.sampled_from([0, 1]),
    ids=st.lists(st.binary(min_size=4, max_size=4), min_size=6, max_size=6),
)
@examples(15)
def test_templates_give_the_bytes_of_the_codecs(
    node: Node,
    version: int,
    times: list[int],
    number: int,
    epoch: int,
    isolation: int,
    ids: list[bytes],
) -> None:
    facts = ClientInfo(2, "127.0.0.1")
    for time, correlation_id in zip(times, ids, strict=False):
        plain = request(version, [(number, time)], epoch=epoch, isolation=isolation)
        frame = plain[:4] + correlation_id + plain[8:]
        assert response_to(node, frame, facts) == response_by_codecs(node, frame)


@pytest.mark.parametrize("version", [1, 4, 7, 11])
def test_responses_with_many_rows_equal_those_of_the_codecs(node: Node, version: int) -> None:
    facts = ClientInfo(2, "127.0.0.1")
    for rows in ([(0, 1500)], [(0, 1500), (1, -1)], [(1, -2), (0, 2500)], [(0, 999), (0, 999)]):
        frame = request(version, rows)
        for _ in range(2):
            assert response_to(node, frame, facts) == response_by_codecs(node, frame)


@pytest.mark.parametrize("version", [1, 7, 11])
def test_a_repeated_request_takes_fewer_steps(node: Node, version: int) -> None:
    facts = ClientInfo(2, "127.0.0.1")
    frames = [request(version, [(0, time)]) for time in (1500, 1700)]
    response_to(node, frames[0], facts)
    again = steps(lambda: response_to(node, frames[1], facts))
    assert again < steps(lambda: response_by_codecs(node, frames[1])) * 0.9


@pytest.mark.parametrize(
    "frame",
    [
        request(7, [(0, 1500), (1, 1500)]),
        request(7, [(0, 1500), (0, 1500)]),
        request(7, []),
        request(7, [(0, 1500)], topic="nobody-s"),
        request(7, [(2, 1500)]),  # partition 2 is not open yet
        request(7, [(0, 1500)]) + b"\0" * 11,  # librdkafka sends extra bytes after this message
        request(7, [(0, 1500)])[:-1],
        request(7, [(0, 1500)], client="c" * 600),
        request(7, [(0, 1500)], isolation=2),
        request(0, [(0, 1500)]),
        request(7, [(0, 1500)])[:20],
        b"\0\2\0\x63" + b"\0" * 60,
    ],
)
def test_responses_to_other_requests_equal_those_of_the_codecs(node: Node, frame: bytes) -> None:
    facts = ClientInfo(2, "127.0.0.1")
    for each in (request(7, [(0, 1500)]), frame, frame):
        assert response_to(node, each, facts) == response_by_codecs(node, each)


@given(
    version=st.integers(0, 12),
    changes=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 255)), max_size=3),
    cut=st.integers(0, 6),
)
@examples(200)
def test_changed_bytes_get_the_same_response_as_without_templates(
    node: Node, version: int, changes: list[tuple[int, int]], cut: int
) -> None:
    frame = bytearray(request(min(version, 11), [(0, 1500)]))
    frame[2:4] = version.to_bytes(2, "big")
    facts = ClientInfo(2, "127.0.0.1")
    response_to(node, bytes(frame), facts)  # so that a template exists
    for at, byte in changes:
        # The first two bytes, the API key, stay: a request of another API may have side effects.
        frame[2 + at % (len(frame) - 2)] = byte
    changed = bytes(frame[: len(frame) - cut])
    assert response_to(node, changed, facts) == response_by_codecs(node, changed)


def test_only_so_many_questions_are_remembered(node: Node) -> None:
    """Memory is bounded even if each request has a new client id."""
    response_to(node, request(7, [(0, 1500)]))
    tracemalloc.start()
    try:
        for number in range(8000):
            frame = request(7, [(0, 1500)], client=f"{number:0400}")
            assert isinstance(response_to(node, frame), bytes)
        # Remembering all requests would take more than 8 MB.
        assert tracemalloc.get_traced_memory()[0] < 4 << 20
    finally:
        tracemalloc.stop()
