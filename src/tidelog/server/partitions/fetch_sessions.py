"""Fetch sessions: the broker remembers a client's partitions, and returns only what has changed.

A request of epoch 0 is full and may begin a session. A request of epoch -1 is full and ends its
session. A request of any other epoch is incremental: it names new, changed and forgotten
partitions. If a response can't hold the records of all partitions, later responses must begin with
the other partitions. So a partition whose records were returned moves to the end of its session.

The clock and randomness are arguments. Sessions are used only in the event loop's thread.

Source: KIP-227, KIP-516 (topic ids); Kafka 4.x FetchSession.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field
from random import Random
from typing import Final, TypeAlias

from tidelog.error_codes import ErrorCode
from tidelog.lazy_dataclass import dataclass
from tidelog.protocol.messages.fetch import FetchPartition
from tidelog.server.partitions.fetch import CachedPartition, PartitionKey, PartitionRead
from tidelog.types import INT32_MAX

NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0
LAST_EPOCH: Final = -1

# Maximum number of partitions of all sessions together. This number of partitions takes about 100
# MB. The maximum is needed because clients can name any number of partitions.
PARTITIONS_MAX: Final = 250_000

# Maximum number of partitions of one session, because each request of the session, however short,
# reads all of these partitions at once.
SESSION_PARTITIONS_MAX: Final = 8000

RequestedPartition: TypeAlias = tuple[PartitionKey, FetchPartition]


@dataclass(slots=True, eq=False)
class FetchSession:
    """A client's fetch session.

    Attributes:
        session_id: Id of the session, above 0.
        is_privileged: Whether a follower began the session. Such a session can be replaced by a
            consumer's session only if it was unused for more than `eviction_ms`.
        by_id: Whether the session's requests name topics by ids.
        created_ms: Monotonic time at which the session began.
        last_used_ms: Monotonic time of the session's last use.
        epoch: Epoch that the session's next request must have.
        partitions: Partitions in the order in which they are read.
    """

    session_id: int
    is_privileged: bool
    by_id: bool
    created_ms: int
    last_used_ms: int
    epoch: int
    partitions: dict[PartitionKey, CachedPartition]

    def update(
        self, requested: Iterable[RequestedPartition], forgotten: Iterable[PartitionKey]
    ) -> None:
        """Apply an incremental request."""
        for key, request in requested:
            cached = self.partitions.get(key)
            if cached is None:
                self.partitions[key] = CachedPartition(key, request)
            else:
                cached.request = request
        for key in forgotten:
            self.partitions.pop(key, None)

    def move_to_end(self, cached: CachedPartition) -> None:
        """Move a partition to the end of the reading order, if the session still has it."""
        if self.partitions.pop(cached.key, None) is not None:
            self.partitions[cached.key] = cached

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Order of eviction: consumers' sessions before followers', then small before large."""
        return self.is_privileged, len(self.partitions), self.session_id


@dataclass(slots=True, kw_only=True, eq=False)
class SessionRequest:
    """Session part of a fetch request.

    Attributes:
        session_id: Id of the session; 0 for no session.
        epoch: 0 begins a session, -1 ends the session, any other epoch continues it.
        by_id: Whether the request names topics by ids.
        is_follower: Whether a follower sent the request.
        partitions: New or changed partitions; in a full request, all partitions.
        forgotten: Partitions to remove from the session.
    """

    session_id: int
    epoch: int
    by_id: bool
    is_follower: bool
    partitions: Sequence[RequestedPartition]
    forgotten: Sequence[PartitionKey] = ()

    @property
    def is_full(self) -> bool:
        """Whether the request names all partitions to read, and not only changes."""
        return self.epoch in (FIRST_EPOCH, LAST_EPOCH)

    @property
    def distinct(self) -> dict[PartitionKey, CachedPartition]:
        """The request's partitions. For a partition that is named twice, the last entry is used."""
        return {key: CachedPartition(key, request) for key, request in self.partitions}


@dataclass(slots=True, eq=False)
class SessionResponse:
    """Session part of a response: error code, session id (0 for none), and partitions."""

    error_code: int
    session_id: int
    partitions: Sequence[PartitionRead] = ()


class Fetching:
    """Partitions to read for a request without a session, and to return in its response.

    For a request that does not fit its session, there are no partitions, and the response has only
    the error.
    """

    def __init__(self, partitions: Iterable[CachedPartition], error_code: int = 0) -> None:
        self.partitions: Sequence[CachedPartition] = tuple(partitions)
        self.error_code = error_code

    def respond(self, reads: Sequence[PartitionRead], _now_ms: int) -> SessionResponse:
        """Return the session part of the response, which has all partitions and no session id."""
        return SessionResponse(self.error_code, NO_SESSION, reads)

    def preview(self, reads: Sequence[PartitionRead]) -> Sequence[PartitionRead]:
        """Return the partitions that a response would have, without recording them as sent."""
        return reads

    def empty_response(self) -> SessionResponse:
        """Return a response without partitions.

        The response never begins a session. If the request continues a session, the session stays.
        """
        return self.respond((), 0)


class FullFetching(Fetching):
    """Partitions of a full request, which begins a session if there is room for one."""

    def __init__(self, cache: "FetchSessions", request: SessionRequest) -> None:
        super().__init__(request.distinct.values())
        self._cache = cache
        self._request = request

    def respond(self, reads: Sequence[PartitionRead], now_ms: int) -> SessionResponse:
        """Return all partitions, and the session's id (0 if no session could begin)."""
        for read in reads:
            read.cached.update(read)
        partitions = {read.cached.key: read.cached for read in reads}
        session_id = self._cache.begin(self._request, partitions, now_ms)
        return SessionResponse(0, session_id, reads)

    def empty_response(self) -> SessionResponse:
        """Return a response without partitions and without a session."""
        return SessionResponse(0, NO_SESSION)


class IncrementalFetching(Fetching):
    """Partitions of an incremental request, which continues a session."""

    def __init__(self, session: FetchSession) -> None:
        super().__init__(session.partitions.values())
        self._session = session
        self._epoch = session.epoch

    def respond(self, reads: Sequence[PartitionRead], _now_ms: int) -> SessionResponse:
        """Return the partitions that have changed since the client got them.

        Returns an error instead if another request has used the session meanwhile.
        """
        session = self._session
        if session.epoch != self._epoch:
            return SessionResponse(ErrorCode.INVALID_FETCH_SESSION_EPOCH, session.session_id)
        changes = [read for read in reads if read.cached.update(read)]
        for read in changes:
            if read.records:
                session.move_to_end(read.cached)
        return SessionResponse(0, session.session_id, changes)

    def preview(self, reads: Sequence[PartitionRead]) -> Sequence[PartitionRead]:
        """Return the partitions that have changed."""
        return [read for read in reads if read.cached.has_changed(read)]


@dataclass(slots=True, eq=False)
class FetchSessions:
    """All sessions of a broker, at most `slots`.

    If all slots are used, a new session replaces the first of these sessions that exists:

    - The least recently used session. Condition: it was unused for more than `eviction_ms`.
    - The session of the lowest rank among the sessions that were created more than `eviction_ms`
      ago. For a follower's new session, consumers' younger sessions are also candidates. Condition:
      the rank is not above the new session's rank.

    If no session can be replaced, or if too many partitions would have to be remembered, the client
    continues without a session.

    Attributes:
        slots: Maximum number of sessions.
        eviction_ms: A session that was unused for more than this time in ms may be replaced. A
            session that was created longer ago than this may also be replaced, if its rank is not
            above the new session's rank.
        random: Source of session ids.
        partitions_max: Maximum number of partitions of all sessions together.
    """

    slots: int
    eviction_ms: int
    random: Random
    partitions_max: int = PARTITIONS_MAX
    # Sessions by id, in the order of their last use.
    _sessions: dict[int, FetchSession] = field(default_factory=dict)

    def open(self, request: SessionRequest, now_ms: int) -> Fetching:
        """Return the partitions to read for a request, and advance the epoch of its session.

        Args:
            request: Session part of the request.
            now_ms: Current monotonic time, in ms.
        """
        if request.is_full:
            self._sessions.pop(request.session_id, None)
            if request.epoch == LAST_EPOCH:
                return Fetching(request.distinct.values())
            return FullFetching(self, request)
        session = self._sessions.get(request.session_id)
        if session is None:
            return Fetching((), ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != request.epoch:
            return Fetching((), ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != request.by_id:
            return Fetching((), ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        return self._continue(session, request, now_ms)

    def _continue(self, session: FetchSession, request: SessionRequest, now_ms: int) -> Fetching:
        count = len(session.partitions)
        session.update(request.partitions, request.forgotten)
        has_grown = len(session.partitions) > count
        is_large = len(session.partitions) > SESSION_PARTITIONS_MAX
        # Counting the partitions of all sessions takes time, so they are counted only if this
        # session has grown.
        is_too_much = has_grown and (is_large or not self._has_room_for(0))
        del self._sessions[session.session_id]
        if is_too_much:  # the client then begins again, without a session
            return Fetching((), ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if not session.partitions:
            return Fetching(())
        self._sessions[session.session_id] = session
        session.last_used_ms = now_ms
        session.epoch = next_epoch(session.epoch)
        return IncrementalFetching(session)

    def begin(
        self, request: SessionRequest, partitions: dict[PartitionKey, CachedPartition], now_ms: int
    ) -> int:
        """Create a session and return its id; return 0 if there is no room for a session."""
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
        """Whether this number of further partitions may be remembered."""
        count = sum(len(session.partitions) for session in self._sessions.values())
        return count + partitions <= self.partitions_max

    def _new_id(self) -> int:
        while True:
            session_id = self.random.randrange(1, INT32_MAX)
            if session_id not in self._sessions:
                return session_id

    def _evict(self, rank: tuple[bool, int, int], now_ms: int) -> bool:
        """Make room for a session of rank `rank`; return whether there is room now."""
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
        """Return the session of lowest rank that a new session of `rank` may replace, or None."""
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
    """Return the next epoch of a session; it is 1 if `epoch` is -1 or the largest epoch."""
    return 1 if epoch in (INT32_MAX, LAST_EPOCH) else epoch + 1
