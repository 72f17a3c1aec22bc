"""A broker, a connection that repeats its fetches, and new connections to compare with."""

import random
from collections.abc import Sequence
from uuid import UUID

from tests.faults.hooked import WarmDisk
from tests.worlds.brokers.outcomes import outcome

from tidelog.config import BrokerConfig
from tidelog.env import Env, ManualClock
from tidelog.errors import TidelogError
from tidelog.protocol.messages import FETCH
from tidelog.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from tidelog.protocol.requests import ClientConnection
from tidelog.protocol.wire import NO_UUID
from tidelog.record.builder import build_batch
from tidelog.server.api.node import ClientInfo
from tidelog.server.broker import open_node
from tidelog.server.partitions.file_pieces import FilePiece
from tidelog.server.partitions.partition import Partition
from tidelog.types import Buffer, NewRecord

TOPICS = ("t", "another")
PARTITIONS = 3
NOW_MS = 1_700_000_000_000
LENGTH_BYTES = 4
BY_ID_SINCE = 13
# Session epoch of a request without a session. A request with a session's id and this epoch closes
# the session.
LAST_EPOCH = -1
MANY_BYTES = 50 << 20
SMALL_SEGMENTS = {"internal.segment.bytes": "400000", "index.interval.bytes": "1000"}

Row = tuple[int, int]  # partition and offset


class Broker:
    """A broker for comparing responses on one lasting connection with those on new connections."""

    def __init__(self, folder: str, *, seed: int = 0, **settings: str) -> None:
        self.clock, self.disk = ManualClock(NOW_MS), WarmDisk()
        seam = Env(clock=self.clock, files=self.disk, random=random.Random(seed))
        named = {name.replace("_", "."): text for name, text in settings.items()}
        self.node = open_node(folder, BrokerConfig.parse(named)[0], env=seam)
        for topic in TOPICS:
            self.create(topic)
        self.connection = ClientInfo(1, "somewhere")

    def create(self, topic: str) -> None:
        """Create a topic and open its partitions."""
        self.node.log_dir.create_topic(topic, partitions=PARTITIONS, config=SMALL_SEGMENTS)
        for number in range(PARTITIONS):
            self.partition(topic, number)

    def partition(self, topic: str, number: int) -> Partition:
        return self.node.partitions.get(topic, number)

    def append(self, topic: str, number: int, size: int, count: int = 1) -> int:
        """Append one batch; return the offset after it."""
        records = [NewRecord(value=bytes(size), timestamp=NOW_MS) for _ in range(count)]
        return self.partition(topic, number).append(build_batch(records)).last_offset + 1

    def say(self, connection: ClientInfo, frame: bytes) -> bytes | str:
        """Return the bytes sent for a frame; if none are sent now, return the reason as text."""
        try:
            found = outcome(self.node, connection, frame)
        except TidelogError as error:
            return type(error).__name__
        return sent(found) if isinstance(found, list) else type(found).__name__

    def compare(self, frame: bytes) -> bytes | str:
        """Send a frame on the lasting and on a new connection; return the common response."""
        expected = self.say(ClientInfo(2, "elsewhere"), frame)
        assert self.say(self.connection, frame) == expected
        return expected

    def frame(
        self,
        version: int,
        asked: Sequence[tuple[str, Sequence[Row]]],
        *,
        client: str = "somebody",
        max_bytes: int = MANY_BYTES,
        partition_max_bytes: int = 1 << 20,
        min_bytes: int = 0,
        wait_ms: int = 500,
        isolation: int = 0,
        epochs: tuple[int, int] = (-1, -1),
        session: tuple[int, int] = (0, LAST_EPOCH),
        replica_id: int = -1,
        with_append_times: bool = False,
        number: int = 7,
    ) -> bytes:
        """Return a Fetch request; `asked` has a (partition, fetch offset) list for each topic."""
        topics = [
            FetchTopic(
                topic=topic,
                topic_id=self.topic_id(topic) if version >= BY_ID_SINCE else NO_UUID,
                partitions=[
                    FetchPartition(
                        partition=partition,
                        fetch_offset=offset,
                        current_leader_epoch=epochs[0],
                        last_fetched_epoch=epochs[1],
                        partition_max_bytes=partition_max_bytes,
                    )
                    for partition, offset in rows
                ],
            )
            for topic, rows in asked
        ]
        message = FetchRequest(
            replica_id=replica_id,
            replica_state=ReplicaState(replica_id=replica_id),
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation,
            session_id=session[0],
            session_epoch=session[1],
            topics=topics,
            with_append_times=with_append_times,
        )
        pieces = ClientConnection(client).request(FETCH, version, message)
        frame = b"".join(pieces)[LENGTH_BYTES:]
        return frame[:4] + number.to_bytes(4, "big") + frame[8:]

    def topic_id(self, topic: str) -> UUID:
        info = self.node.topics.find(topic)
        return NO_UUID if info is None or info.topic_id is None else info.topic_id


def sent(pieces: Sequence[Buffer | FilePiece]) -> bytes:
    """Return all bytes of a response, including the bytes of file pieces."""
    parts = [
        piece.read(piece.size_bytes) if isinstance(piece, FilePiece) else bytes(piece)
        for piece in pieces
    ]
    data = b"".join(parts)
    assert int.from_bytes(data[:LENGTH_BYTES], "big") == len(data) - LENGTH_BYTES
    return data
