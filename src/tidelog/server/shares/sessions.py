"""Share sessions: the partitions that a member reads are remembered from request to request.

Epoch 0 begins a session anew, -1 ends it, any other goes on with it and must be one above the last.
Where there are as many sessions as there may be, a new one is refused: none is pushed out.

Pure. Belongs to one thread.

Source: KIP-932; Kafka 4.3's ShareSessionCache, ShareSession, ShareSessionContext.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

from tidelog.error_codes import ErrorCode
from tidelog.types import INT32_MAX

# What all sessions may remember together: clients may name partitions as they like.
PARTITIONS_MAX: Final = 250_000


class SessionKey(NamedTuple):
    """A member of a group."""

    group_id: str
    member_id: str


class SharedPartition(NamedTuple):
    """A partition as requests name it."""

    topic_id: UUID
    number: int


@dataclass(slots=True)
class ShareSession:
    """What one member reads.

    Attributes:
        key: Whose.
        epoch: What its next request must have.
        partitions: In the order in which they were named first; and whether the member is to be
            told of each, whatever there is to say.
        on_end: Called once when it ends, however that comes.
    """

    key: SessionKey
    epoch: int = 1
    partitions: dict[SharedPartition, bool] = field(default_factory=dict)
    on_end: Callable[[], None] = lambda: None

    def rotated(self, epoch: int) -> list[SharedPartition]:
        """Its partitions, each request another one first, so that all have their turn."""
        found = list(self.partitions)
        turn = epoch % len(found) if found else 0
        return found[turn:] + found[:turn]


class ShareSessions:
    """All sessions."""

    def __init__(self, most: int) -> None:
        """At most so many."""
        self.most = most
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def partition_count(self) -> int:
        """How many partitions all of them have together."""
        return self._partitions

    def find(self, key: SessionKey) -> ShareSession | None:
        """A member's session."""
        return self._sessions.get(key)

    def of_group(self, group_id: str) -> list[ShareSession]:
        """All of a group; looks at all groups."""
        return [each for each in self._sessions.values() if each.key.group_id == group_id]

    def begin(self, key: SessionKey, named: Iterable[SharedPartition]) -> ShareSession | ErrorCode:
        """Begin one anew."""
        self.end(key)
        if len(self._sessions) >= self.most:
            return ErrorCode.SHARE_SESSION_LIMIT_REACHED
        session = ShareSession(key)
        code = self._add(session, named, is_news=False)
        if code:
            return code
        self._sessions[key] = session
        self._partitions += len(session.partitions)
        return session

    def go_on(
        self,
        key: SessionKey,
        epoch: int,
        named: Iterable[SharedPartition] = (),
        forgotten: Iterable[SharedPartition] = (),
    ) -> ShareSession | ErrorCode:
        """The next request of one."""
        session = self._sessions.get(key)
        if session is None:
            return ErrorCode.SHARE_SESSION_NOT_FOUND
        if session.epoch != epoch:
            return ErrorCode.INVALID_SHARE_SESSION_EPOCH
        before = len(session.partitions)
        self._partitions -= before
        code = self._add(session, named, is_news=True)
        for partition in forgotten:
            session.partitions.pop(partition, None)
        self._partitions += len(session.partitions)
        if code:
            return code
        session.epoch = _after(epoch)
        return session

    def _add(
        self, session: ShareSession, named: Iterable[SharedPartition], *, is_news: bool
    ) -> ErrorCode:
        room = PARTITIONS_MAX - self._partitions
        for partition in named:
            if partition not in session.partitions:
                if len(session.partitions) >= room:
                    return ErrorCode.SHARE_SESSION_LIMIT_REACHED
                session.partitions[partition] = is_news
        return ErrorCode.NONE

    def end(self, key: SessionKey) -> ShareSession | None:
        """End one; None where there is none. Whoever holds on to it is to empty it."""
        session = self._sessions.pop(key, None)
        if session is not None:
            self._partitions -= len(session.partitions)
            session.on_end()
        return session


def _after(epoch: int) -> int:
    return 1 if epoch == INT32_MAX else epoch + 1
