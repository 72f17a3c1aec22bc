"""Damaged requests of every announced API and version get a response, an error or a disconnect.

A valid frame, filled randomly with existing names, is damaged and sent to a connection. Then no
unexpected error is logged, the loop keeps running, and the next client is served. For some frames,
drawn at random, the memory that the broker allocates is bounded: at most eight times the frame's
size plus 1 MiB. Some frames are sent over a socket.
"""

import asyncio
import logging
import random
import socket
import struct
import tracemalloc
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

import pytest
from tests.worlds.brokers.socketless import Errors, Talk, World, watched
from tests.worlds.clients.raw import RawClient
from tests.worlds.records.messages import Fill, Sampler, bounds
from tests.worlds.waiting import PATIENCE_S

from tidelog.protocol.messages import API_VERSIONS, AnyApi
from tidelog.protocol.messages.metadata import ApiVersionsRequest
from tidelog.protocol.requests import ClientConnection
from tidelog.protocol.schema import Form, Kind
from tidelog.record.builder import build_batch
from tidelog.server.api.table import ROWS
from tidelog.server.embedded import Broker
from tidelog.types import Codec, NewRecord

TOPIC, GROUP, BYSTANDERS = "mutated", "group", "untouched"
EXTREMES = (0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x00FFFFFF, 0xFFFF, 0)
FRAMES, FRAMES_SWEEP, FRAMES_PER_WORLD = 4_000, 100_000, 1_000
SOCKET_FRAMES = 300
MEASURED_SHARE = 0.05
IMPATIENT_SHARE = 0.1
MEMORY_FACTOR, MEMORY_BASE = 8, 1 << 20


def announced() -> list[tuple[AnyApi, int]]:
    """Return every served API with each of its versions."""
    return [(row.api, v) for row in ROWS for v in range(row.api.first, row.api.last + 1)]


class Filled(Sampler):
    """Draws messages that name existing topics and groups and contain valid batches."""

    def __init__(self, version: int, rng: random.Random, topic_id: UUID) -> None:
        super().__init__(version, rng.getrandbits(32), Fill.ANY)
        self._rng = rng
        self._topic_id = topic_id

    def _number(self, kind: Kind[object], path: tuple[str, ...]) -> int:
        if self._rng.random() < 0.5:
            return self._rng.choice([0, 0, 1, max(-1, bounds(kind.form)[0])])
        return super()._number(kind, path)

    def _other(self, form: Form) -> object:
        if self._rng.random() < 0.2:
            return super()._other(form)
        if form is Form.UUID:
            return self._topic_id
        if form is Form.STRING:
            return self._rng.choice([TOPIC, GROUP, "consumer", "range", ""])
        if form is Form.BYTES and self._rng.random() < 0.7:
            return _batch(self._rng)
        return super()._other(form)


def _batch(rng: random.Random) -> bytes:
    records = [NewRecord(value=rng.randbytes(9), timestamp=n) for n in range(rng.randint(1, 4))]
    return bytes(build_batch(records, codec=rng.choice(list(Codec))))


def whole_frame(rng: random.Random, api: AnyApi, version: int, topic_id: UUID) -> bytes:
    """Return a valid request with its length in front."""
    message = Filled(version, rng, topic_id).message(api.request)
    return b"".join(ClientConnection("mutated").request(api, version, message))


def damaged(rng: random.Random, frame: bytes) -> bytes:
    """Return a frame changed, cut, doubled or extended at up to four places, with a correct length.

    One frame in seven is returned undamaged, because a valid frame with random content is also a
    test.
    """
    body = bytearray(frame[4:])
    for _ in range(rng.choice([0, 1, 1, 1, 1, 2, 4])):
        _damage(rng, body)
    return struct.pack(">i", len(body)) + body


def _damage(rng: random.Random, body: bytearray) -> None:
    at = rng.randrange(len(body) + 1)
    match rng.randrange(6):
        case 0 if at < len(body):
            body[at] ^= 1 << rng.randrange(8)
        case 1:
            body[at : at + 1] = rng.randbytes(1)
        case 2:
            body[at : at + 4] = rng.choice(EXTREMES).to_bytes(4, "big")
        case 3 if at > 10:
            del body[at:]
        case 4:
            other = rng.randrange(len(body) + 1)
            body[at:at] = body[other : other + rng.randint(1, 30)]
        case _:
            del body[at : at + rng.randint(1, 8)]
    if not body:
        body += b"\0"


async def _serves(world: World) -> None:
    """Assert that a new client gets a response to ApiVersions."""
    talk = world.connect()
    client = ClientConnection("next")
    asked = ApiVersionsRequest(client_software_name="n", client_software_version="1")
    talk.feed(b"".join(client.request(API_VERSIONS, 3, asked)))
    await talk.settle()
    client.feed(bytes(talk.transport.sent))
    assert client.next_response() is not None
    await talk.hang_up()


async def _one(world: World, frame: bytes, rng: random.Random) -> None:
    """Send a frame from a new client, which sometimes disconnects before the frame is processed."""
    talk = world.connect()
    if rng.random() < MEASURED_SHARE:
        _measured(world, talk, frame)
    else:
        talk.feed(frame)
    if rng.random() < 1 - IMPATIENT_SHARE:
        await talk.settle()
    await talk.hang_up()


def _measured(world: World, talk: Talk, frame: bytes) -> None:
    """Send a frame; assert that the memory allocated meanwhile is bounded.

    The first request of a kind may allocate memory that is kept (a module, a group's partition). So
    if the first try exceeds the bound, the frame is sent again, and the second try must not exceed
    the bound.
    """
    limit = MEMORY_FACTOR * len(frame) + MEMORY_BASE
    if _peak_of(talk, frame) > limit:
        assert _peak_of(world.connect(), frame) <= limit, frame.hex()


def _peak_of(talk: Talk, frame: bytes) -> int:
    tracemalloc.start()
    try:
        talk.feed(frame)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def _life(folder: Path, errors: Errors, frames: int, seed: int) -> None:
    """Send valid frames of every API, to load all modules, then `frames` damaged ones."""
    rng = random.Random(seed)
    world = World.open(folder, errors)
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, told: errors.records.append(str(told)))
    info, _ = world.node.log_dir.create_topic(TOPIC, partitions=2)
    topic_id = info.topic_id or UUID(int=0)
    known = announced()
    try:
        for api, version in known:
            talk = world.connect()
            talk.feed(whole_frame(rng, api, version, topic_id))
            await talk.settle()
            await talk.hang_up()
            assert not errors.records, (api.name, version, errors.records[0])
        for _ in range(frames):
            api, version = rng.choice(known)
            frame = damaged(rng, whole_frame(rng, api, version, topic_id))
            await _one(world, frame, rng)
            assert not errors.records, (api.name, version, frame.hex(), errors.records[0])
        await _serves(world)
    finally:
        await world.close()


def test_damaged_frames_affect_no_other_client(
    request: pytest.FixtureRequest, quick_path: Path
) -> None:
    frames = FRAMES_SWEEP if request.config.getoption("--sweep") else FRAMES
    with watched() as errors:
        for number in range(frames // FRAMES_PER_WORLD):
            folder = quick_path / str(number)
            asyncio.run(_life(folder, errors, FRAMES_PER_WORLD, seed=number))


def _streams(rng: random.Random, topic_id: UUID, count: int) -> Iterator[bytes]:
    """Yield the bytes that clients send: damaged frames, wrong lengths, and random bytes."""
    known = announced()
    for _ in range(count):
        api, version = rng.choice(known)
        frame = damaged(rng, whole_frame(rng, api, version, topic_id))
        kind = rng.randrange(4)
        if kind == 0:
            yield rng.choice(EXTREMES).to_bytes(4, "big") + frame[4:]
        elif kind == 1:
            yield rng.randbytes(rng.randint(1, 200))
        else:
            yield frame


def test_damaged_frames_over_sockets_leave_the_broker_serving(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(6)
    info, _ = broker.call(lambda node: node.log_dir.create_topic(TOPIC, partitions=2))
    host, _, port = broker.bootstrap_servers.rpartition(":")
    with RawClient(broker.bootstrap_servers) as bystander, ExitStack() as open_ones:
        for stream in _streams(rng, info.topic_id or UUID(int=0), SOCKET_FRAMES):
            sock = socket.create_connection((host, int(port)), PATIENCE_S)
            open_ones.enter_context(sock)
            sock.sendall(stream)
        # A topic that no frame names, because some frames are valid and delete the topic they name.
        broker.call(lambda node: node.log_dir.create_topic(BYSTANDERS, partitions=1))
        bystander.produce(BYSTANDERS, _batch(rng))
        assert [one.value is not None for one in bystander.read_all(BYSTANDERS)]
    _none_failed(caplog)


def _none_failed(caplog: pytest.LogCaptureFixture) -> None:
    failed: Sequence[str] = [one.getMessage() for one in caplog.records if one.levelname == "ERROR"]
    assert not failed


def test_the_harness_collects_unexpected_errors() -> None:
    """`watched` collects errors that the broker logs, so such an error fails the tests above."""
    with watched() as errors:
        logging.getLogger("tidelog.server").error("planted")
    assert errors.records == ["planted"]
