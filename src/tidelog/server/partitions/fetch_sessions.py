"""Fetch sessions: what a client asked for once is remembered, and only what changed is answered.

A request of epoch 0 is full and may begin a session, one of epoch -1 is full and ends it, any other
is incremental: it names what is new or changed, and what to forget. Partitions with records go to
the end of their session, so that each gets its turn where an answer can't hold all.

Pure: the clock and randomness come in with the calls. Not safe for two threads.

Source: KIP-227, KIP-516 (topic ids); Kafka 4.x FetchSession.
"""

from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from random import Random
from typing import Final, Generic, Protocol, TypeAlias, TypeVar
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages.fetch import DivergingEpoch, FetchPartition
from tidelog.server.partitions.partition import Partition
from tidelog.types import INT32_MAX

NO_SESSION: Final = 0


FIRST_EPOCH: Final = 0


LAST_EPOCH: Final = -1


UNKNOWN: Final = -1


# What all sessions may remember together, about 100 MB: clients may name partitions as they like.
PARTITIONS_MAX: Final = 250_000


# What one session may remember: each of its requests, however short, reads all of them at once.
SESSION_PARTITIONS_MAX: Final = 8000


# A topic by its name, by its id from version 13 on, and the partition's number.
PartitionKey: TypeAlias = tuple[str | UUID, int]


Asked: TypeAlias = tuple[PartitionKey, FetchPartition]


class PartitionResult(Protocol):
    """What a read gave of a partition, as far as a session looks at it."""

    @property
    def error_code(self) -> int:
        """0 where it was read."""
        ...

    @property
    def high_watermark(self) -> int:
        """The partition's, -1 with an error."""
        ...

    @property
    def log_start_offset(self) -> int:
        """The partition's, -1 with an error."""
        ...

    @property
    def diverging_epoch(self) -> DivergingEpoch:
        """Where the client's log and the partition's part; epoch -1 where they don't."""
        ...

    @property
    def records(self) -> Sized | None:
        """Records, if any."""
        ...


ResultT = TypeVar("ResultT", bound=PartitionResult)


Results: TypeAlias = Sequence[tuple["CachedPartition", ResultT]]


@dataclass(slots=True)
class CachedPartition:
    """What a session knows of a partition.

    Attributes:
        key: Which one.
        asked: What the client last said of it.
        topic: The topic's name, where it was asked for by id: that of when it was found, which a
            session keeps when the topic is deleted.
        partition: The broker's own, where it was found before.
        high_watermark: What the client was told last, -1 for nothing.
        log_start_offset: Likewise.
    """

    key: PartitionKey
    asked: FetchPartition
    topic: str | None = None
    partition: Partition | None = None
    high_watermark: int = UNKNOWN
    log_start_offset: int = UNKNOWN

    def is_news(self, answer: PartitionResult) -> bool:
        """Whether the client has to be told."""
        return (
            bool(answer.records)
            or self.high_watermark != answer.high_watermark
            or self.log_start_offset != answer.log_start_offset
            or answer.error_code != 0
            or answer.diverging_epoch.epoch >= 0
        )

    def take(self, answer: PartitionResult) -> bool:
        """Note what is going to be answered; whether the client has to be told."""
        changed = self.is_news(answer)
        # After an error the partition is told again, whatever it was before.
        self.high_watermark = UNKNOWN if answer.error_code else answer.high_watermark
        self.log_start_offset = answer.log_start_offset
        return changed


@dataclass(slots=True)
class FetchSession:
    """What one client reads.

    Attributes:
        session_id: Its number, above 0.
        is_privileged: A follower's, which no consumer's pushes out.
        by_id: Whether it names topics by ids.
        created_ms: When it began, by monotonic time.
        last_used_ms: When it was used last, likewise.
        epoch: The epoch that its next request must have.
        partitions: In the order in which they are read.
    """

    session_id: int
    is_privileged: bool
    by_id: bool
    created_ms: int
    last_used_ms: int
    epoch: int
    partitions: dict[PartitionKey, CachedPartition]

    def update(self, asked: Iterable[Asked], forgotten: Iterable[PartitionKey]) -> None:
        """Take in what an incremental request says."""
        for key, wanted in asked:
            known = self.partitions.get(key)
            if known is None:
                self.partitions[key] = CachedPartition(key, wanted)
            else:
                known.asked = wanted
        for key in forgotten:
            self.partitions.pop(key, None)

    def move_to_end(self, cached: CachedPartition) -> None:
        """Read this one last from now on; nothing where it was forgotten in between."""
        if self.partitions.pop(cached.key, None) is not None:
            self.partitions[cached.key] = cached

    @property
    def rank(self) -> tuple[bool, int, int]:
        """What it is worth: followers above others, large ones above small ones."""
        return self.is_privileged, len(self.partitions), self.session_id


@dataclass(slots=True, kw_only=True)
class SessionRequest:
    """What a fetch says of its session.

    Attributes:
        session_id: 0 for none.
        epoch: 0 begins a session, -1 ends it, others go on with it.
        by_id: Whether topics are named by ids.
        is_follower: Whether a copy of the log asks.
        asked: Partitions that are new or changed; all of them in a full request.
        forgotten: Partitions to leave out from now on.
    """

    session_id: int
    epoch: int
    by_id: bool
    is_follower: bool
    asked: Sequence[Asked]
    forgotten: Sequence[PartitionKey] = ()

    @property
    def is_full(self) -> bool:
        """Whether it names all that it wants."""
        return self.epoch in (FIRST_EPOCH, LAST_EPOCH)

    @property
    def distinct(self) -> dict[PartitionKey, CachedPartition]:
        """Its partitions; of one that is named twice the last counts."""
        return {key: CachedPartition(key, asked) for key, asked in self.asked}


@dataclass(slots=True)
class SessionAnswer(Generic[ResultT]):
    """What to say: an error and nothing else, or a session (0 for none) and the partitions."""

    error_code: int
    session_id: int
    partitions: Results[ResultT] = ()


class Fetching:
    """One request: which partitions to read, and what to say of them."""

    error_code: int = 0

    def __init__(self, partitions: Iterable[CachedPartition]) -> None:
        self.partitions: Sequence[CachedPartition] = tuple(partitions)

    def answer(self, answered: Results[ResultT], now_ms: int) -> SessionAnswer[ResultT]:  # noqa: ARG002
        """What to say once they were read: without a session, all."""
        return SessionAnswer(0, NO_SESSION, answered)

    def preview(self, answered: Results[ResultT]) -> Results[ResultT]:
        """Of which partitions something would be said; nothing is noted."""
        return answered

    def silence(self) -> SessionAnswer[PartitionResult]:
        """What to say where nothing is to be brought yet; a new session is not begun."""
        return SessionAnswer(self.error_code, NO_SESSION)


class RefusedFetching(Fetching):
    """A request that does not fit its session."""

    def __init__(self, error_code: int) -> None:
        super().__init__(())
        self.error_code = error_code

    def answer(self, answered: Results[ResultT], now_ms: int) -> SessionAnswer[ResultT]:  # noqa: ARG002
        """The error alone."""
        return SessionAnswer(self.error_code, NO_SESSION)


class FullFetching(Fetching):
    """A request that begins a session, if there is room."""

    def __init__(self, cache: "FetchSessions", request: SessionRequest) -> None:
        super().__init__(request.distinct.values())
        self._cache = cache
        self._request = request

    def answer(self, answered: Results[ResultT], now_ms: int) -> SessionAnswer[ResultT]:
        """All, and the session's number."""
        for cached, data in answered:
            cached.take(data)
        partitions = {cached.key: cached for cached, _ in answered}
        session_id = self._cache.begin(self._request, partitions, now_ms)
        return SessionAnswer(0, session_id, answered)


class IncrementalFetching(Fetching):
    """A request that goes on with a session."""

    def __init__(self, session: FetchSession) -> None:
        super().__init__(session.partitions.values())
        self._session = session
        self._epoch = session.epoch

    def answer(self, answered: Results[ResultT], now_ms: int) -> SessionAnswer[ResultT]:  # noqa: ARG002
        """What has changed since the client was told."""
        session = self._session
        if session.epoch != self._epoch:
            return SessionAnswer(ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.session_id)
        changes = list(self._told(answered))
        return SessionAnswer(0, session.session_id, changes)

    def preview(self, answered: Results[ResultT]) -> Results[ResultT]:
        """What has changed."""
        return [(cached, data) for cached, data in answered if cached.is_news(data)]

    def silence(self) -> SessionAnswer[PartitionResult]:
        """The session goes on."""
        session = self._session
        error_code = 0 if session.epoch == self._epoch else ErrorCode.INVALID_FETCH_SESSION_EPOCH
        return SessionAnswer(error_code, session.session_id)

    def _told(
        self, answered: Iterable[tuple[CachedPartition, ResultT]]
    ) -> Iterator[tuple[CachedPartition, ResultT]]:
        for cached, data in answered:
            if cached.take(data):
                if data.records:
                    self._session.move_to_end(cached)
                yield cached, data


@dataclass(slots=True)
class FetchSessions:
    """All sessions of a broker, at most `slots`.

    Where there is no room, one that was unused for `eviction_ms` makes way, or one of less worth
    that lives longer than that. Else the client goes on without a session, as it does where more
    partitions would have to be remembered than may be.

    Attributes:
        slots: How many there may be.
        eviction_ms: How long one is safe.
        random: Where numbers are drawn from.
        partitions_max: How many partitions they may remember together.
    """

    slots: int
    eviction_ms: int
    random: Random
    partitions_max: int = PARTITIONS_MAX
    # In the order of their last use.
    _sessions: dict[int, FetchSession] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, request: SessionRequest, now_ms: int) -> Fetching:
        """What to read for a request; its session, where it has one, is moved on.

        Args:
            request: What it says.
            now_ms: Monotonic time.
        """
        if request.is_full:
            self._sessions.pop(request.session_id, None)
            if request.epoch == LAST_EPOCH:
                return Fetching(request.distinct.values())
            return FullFetching(self, request)
        session = self._sessions.get(request.session_id)
        if session is None:
            return RefusedFetching(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.epoch:
            return RefusedFetching(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != request.by_id:
            return RefusedFetching(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        return self._go_on(session, request, now_ms)

    def _go_on(self, session: FetchSession, request: SessionRequest, now_ms: int) -> Fetching:
        session.update(request.asked, request.forgotten)
        is_large = len(session.partitions) > SESSION_PARTITIONS_MAX
        is_too_much = bool(request.asked) and (is_large or not self._has_room_for(0))
        del self._sessions[session.session_id]
        if is_too_much:  # the client asks for all again, which goes without a session
            return RefusedFetching(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if not session.partitions:
            return Fetching(())
        self._sessions[session.session_id] = session
        session.last_used_ms = now_ms
        session.epoch = next_epoch(session.epoch)
        return IncrementalFetching(session)

    def begin(
        self, request: SessionRequest, partitions: dict[PartitionKey, CachedPartition], now_ms: int
    ) -> int:
        """Keep a new session; its number, 0 where there is no room."""
        rank = request.is_follower, len(partitions), 0
        if not self._has_room_for(len(partitions)):
            return NO_SESSION
        if len(self._sessions) >= self.slots and not self._evict(rank, now_ms):
            return NO_SESSION
        session_id = self._new_id()
        self._sessions[session_id] = FetchSession(
            session_id,
            request.is_follower,
            request.by_id,
            now_ms,
            now_ms,
            next_epoch(FIRST_EPOCH),
            partitions,
        )
        return session_id

    def _has_room_for(self, partitions: int) -> bool:
        """Whether so many more may be remembered."""
        count = sum(len(session.partitions) for session in self._sessions.values())
        return count + partitions <= self.partitions_max

    def _new_id(self) -> int:
        while True:
            session_id = self.random.randrange(1, INT32_MAX)
            if session_id not in self._sessions:
                return session_id

    def _evict(self, rank: tuple[bool, int, int], now_ms: int) -> bool:
        """Make room for a session of that worth; whether there is room now."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        if now_ms - oldest.last_used_ms <= self.eviction_ms:
            oldest = self._least(rank, now_ms)
        if oldest is None:
            return False
        del self._sessions[oldest.session_id]
        return True

    def _least(self, rank: tuple[bool, int, int], now_ms: int) -> FetchSession | None:
        """The session of least worth that may be pushed out by one of that worth."""
        is_privileged = rank[0]
        open_to_it = (
            session
            for session in self._sessions.values()
            if (is_privileged and not session.is_privileged)
            or now_ms - session.created_ms > self.eviction_ms
        )
        least = min(open_to_it, key=lambda session: session.rank, default=None)
        return least if least is not None and least.rank <= rank else None


def next_epoch(epoch: int) -> int:
    """The epoch of the request after one: it grows, and goes round to 1."""
    return 1 if epoch in (INT32_MAX, LAST_EPOCH) else epoch + 1
