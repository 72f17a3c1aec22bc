"""What a standby kept of its leader's groups: taken into `__consumer_offsets` when it is served.

A copy of a directory that `tidelog follow` made has the offsets of groups in a file of its own. Who
serves it promotes it, so they go into the topic before any group is answered, and the file goes
when they are durable. What the topic knows already stays; a commit beyond the end of its partition,
which the copy had not reached, becomes the end. Source: docs/follow.md, docs/groups.md.
"""

import posixpath
from collections.abc import Iterator
from typing import Final

from tidelog.errors import TidelogError
from tidelog.protocol.wire import NO_UUID
from tidelog.server.groups.codes import Code
from tidelog.server.groups.group import ClassicGroup
from tidelog.server.groups.host import LOGGER, Host
from tidelog.server.groups.journal import OffsetsLog
from tidelog.server.groups.offsets import NO_EPOCH, CommittedOffset
from tidelog.server.groups.partitioning import partition_for
from tidelog.server.groups.records import offset_record
from tidelog.storage.group_offsets import GROUPS_FILE, GroupOffset, read_group_offsets

# Far below what a batch may hold.
RECORDS_PER_BATCH: Final = 500

Taken = tuple[ClassicGroup, GroupOffset, CommittedOffset]


class Standby:
    """The file, until it has been taken in. Belongs to the loop's thread."""

    def __init__(self, host: Host, log: OffsetsLog) -> None:
        self._host = host
        self._log = log
        self._path = posixpath.join(host.log_dir.path, GROUPS_FILE)
        self._groups: dict[str, list[GroupOffset]] = {}

    @property
    def is_there(self) -> bool:
        """Whether there is such a file."""
        return self._host.env.files.exists(self._path)

    async def read(self) -> bool:
        """Read the file; False where it can't be read, which is logged."""
        try:
            found = await self._host.work.run(
                read_group_offsets, self._host.env.files, self._host.log_dir.path
            )
        except (TidelogError, OSError) as error:
            LOGGER.error("groups of the leader are not known: %s", error)
            return False
        self._groups = {} if found is None else {n: list(c) for n, c in found.groups.items()}
        partitions = self._host.partitions
        places = {(each.topic, each.partition) for all_ in self._groups.values() for each in all_}
        await partitions.open_beside(partitions.unopened(places), self._host.work)
        return True

    def take_in(self, number: int, count: int, groups: dict[str, ClassicGroup]) -> bool:
        """Add what a partition of the topic, of so many, lacks; whether all could be written."""
        taken = list(self._missing(number, count, groups))
        for at in range(0, len(taken), RECORDS_PER_BATCH):
            part = taken[at : at + RECORDS_PER_BATCH]
            records = [
                offset_record(group.group_id, place.topic, place.partition, offset)
                for group, place, offset in part
            ]
            written = self._log.append(number, records)
            if written.is_done and written.value is not Code.NONE:
                return False
            for group, place, offset in part:
                group.offsets.put(place.topic, place.partition, offset)
                groups[group.group_id] = group
        return True

    def _missing(self, number: int, count: int, groups: dict[str, ClassicGroup]) -> Iterator[Taken]:
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
        """The commit, at most the end of its partition; None where there is no such partition."""
        info = self._host.topics.find(place.topic)
        try:
            log = self._host.partitions.get(place.topic, place.partition).log
        except TidelogError:
            return None
        return CommittedOffset(
            min(place.offset, log.log_end_offset),
            NO_EPOCH if place.leader_epoch is None else place.leader_epoch,
            place.metadata,
            now_ms,
            topic_id=NO_UUID if info is None or info.topic_id is None else info.topic_id,
        )

    async def finish(self, count: int) -> None:
        """All is in the topic: remove the file once that is durable."""
        self._groups = {}
        try:
            for number in range(count):
                await self._sync(number)
            await self._host.work.run(self._remove)
        except (TidelogError, OSError) as error:
            LOGGER.error("%s stays until the next start: %s", self._path, error)

    async def _sync(self, number: int) -> None:
        partition = self._log.partition(number)
        if partition is None or partition.log.recovery_point >= partition.log.log_end_offset:
            return
        await partition.flushed()

    def _remove(self) -> None:
        self._host.env.files.remove(self._path)
        self._host.env.files.sync_dir(self._host.log_dir.path)
