"""What a standby kept of its leader's groups: taken into `__consumer_offsets` when it is served.

A copy of a directory that `tidelog follow` made has the offsets of groups in a file of its own. Who
serves it promotes it, so they go into the topic before any group is answered, and the file goes
when they are durable. A file that can't be read keeps all groups from being served: without it they
would go on somewhere else. What the topic knows already stays; a commit beyond the end of its
partition, which the copy had not reached, becomes the end. Source: docs/follow.md, docs/groups.md.
"""

import posixpath
from collections.abc import Iterator
from typing import Final

from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError, UnknownTopic
from tidelog.protocol.wire import NO_UUID
from tidelog.server.groups.group import ClassicGroup
from tidelog.server.groups.host import LOGGER, Host
from tidelog.server.groups.internal_topic import RETRY_MS, InternalTopic
from tidelog.server.groups.journal import OffsetsLog
from tidelog.server.groups.offsets import CommittedOffset
from tidelog.server.groups.partitioning import partition_for
from tidelog.server.groups.records import offset_record
from tidelog.server.groups.replay import LoadedShard
from tidelog.server.groups.table import AnyGroup
from tidelog.storage.group_offsets import GROUPS_FILE, GroupOffset, read_group_offsets
from tidelog.types import NO_LEADER_EPOCH

# Far below what a batch may hold.
RECORDS_PER_BATCH: Final = 500
_UNREADABLE: Final = (
    "%s can't be read, and no group is served before it can be: %s. Let `tidelog follow` write it"
    " anew, or mend it; without the file groups go on with what __consumer_offsets has of them"
)

Taken = tuple[AnyGroup, GroupOffset, CommittedOffset]


class Standby:
    """The file, until it has been taken in. Belongs to the loop's thread.

    Attributes:
        is_read: Whether it was read, and still is there.
    """

    def __init__(self, host: Host, topic: InternalTopic[LoadedShard], log: OffsetsLog) -> None:
        self._host = host
        self._topic = topic
        self._log = log
        self._path = posixpath.join(host.log_dir.path, GROUPS_FILE)
        self._groups: dict[str, list[GroupOffset]] = {}
        self._failed_ms: int | None = None
        self.is_read = False

    @property
    def is_there(self) -> bool:
        """Whether there is such a file."""
        return self._host.env.files.exists(self._path)

    @property
    def may_read(self) -> bool:
        """Whether it is time to read the file: not just after that has failed."""
        if self._failed_ms is None:
            return True
        return self._host.env.clock.monotonic_ms() - self._failed_ms >= RETRY_MS

    async def read(self) -> bool:
        """Read the file; False where it can't be read, which is logged: then no group is served."""
        try:
            found = await self._host.work.run(
                read_group_offsets, self._host.env.files, self._host.log_dir.path
            )
        except (TidelogError, OSError) as error:
            self._failed_ms = self._host.env.clock.monotonic_ms()
            LOGGER.error(_UNREADABLE, self._path, error)
            return False
        self._failed_ms, self.is_read = None, True
        self._groups = {} if found is None else {n: list(c) for n, c in found.groups.items()}
        partitions = self._host.partitions
        places = {(each.topic, each.partition) for all_ in self._groups.values() for each in all_}
        await partitions.open_beside(partitions.unopened(places), self._host.work)
        return True

    def take_in(self, number: int, count: int, groups: dict[str, AnyGroup]) -> bool:
        """Add what a partition of the topic, of so many, lacks; whether all could be written.

        Raises:
            StorageFailure: A partition that groups have committed for can't be opened.
        """
        taken = list(self._missing(number, count, groups))
        for at in range(0, len(taken), RECORDS_PER_BATCH):
            part = taken[at : at + RECORDS_PER_BATCH]
            records = [
                offset_record(group.group_id, place.topic, place.partition, offset)
                for group, place, offset in part
            ]
            written = self._log.append_now(number, records)
            if written.is_done and written.value is not ErrorCode.NONE:
                return False
            for group, place, offset in part:
                group.offsets.put(place.topic, place.partition, offset)
                groups[group.group_id] = group
        return True

    def _missing(self, number: int, count: int, groups: dict[str, AnyGroup]) -> Iterator[Taken]:
        now_ms = self._host.env.clock.now_ms()
        for group_id, places in self._groups.items():
            if partition_for(group_id, count) != number:
                continue
            group = groups.get(group_id) or ClassicGroup(group_id, now_ms)
            for place in places:
                offset = self._offset(place, now_ms)
                if offset is not None and group.offsets.get(place.topic, place.partition) is None:
                    yield group, place, offset

    def _offset(self, place: GroupOffset, now_ms: int) -> CommittedOffset | None:
        """The commit, at most the end of its partition; None where there is no such partition.

        Raises:
            StorageFailure: That can't be told now.
        """
        info = self._host.topics.find(place.topic)
        try:
            log = self._host.partitions.get(place.topic, place.partition).log
        except UnknownTopic:
            return None
        return CommittedOffset(
            min(place.offset, log.log_end_offset),
            NO_LEADER_EPOCH if place.leader_epoch is None else place.leader_epoch,
            place.metadata,
            now_ms,
            topic_id=NO_UUID if info is None or info.topic_id is None else info.topic_id,
        )

    async def finish(self, count: int) -> None:
        """All is in the topic: remove the file once that is durable."""
        try:
            for number in range(count):
                await self._sync(number)
            if not self._topic.is_served:
                return  # one was lost meanwhile, and takes it in again before this is tried again
            self._groups = {}
            await self._host.work.run(self._remove)
            self.is_read = False
        except (TidelogError, OSError) as error:
            LOGGER.error("%s stays for now, all of it was taken in: %s", self._path, error)

    async def _sync(self, number: int) -> None:
        partition = self._topic.partition(number)
        if partition is None or partition.log.recovery_point >= partition.log.log_end_offset:
            return
        await partition.flushed()

    def _remove(self) -> None:
        self._host.env.files.remove(self._path)
        self._host.env.files.sync_dir(self._host.log_dir.path)
