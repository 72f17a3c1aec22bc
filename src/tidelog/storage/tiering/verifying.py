"""Holding a tier against its manifest: every object is read, or only asked for its length."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from tidelog.storage.tiering.copying import object_problem
from tidelog.storage.tiering.partition_tier import PartitionTier
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.storage.log_dir import LogDir


class Problem(NamedTuple):
    """Something in a tier that is not as the manifest says.

    Attributes:
        topic_partition: Whose it is.
        first_offset: First offset concerned.
        end_offset: Offset behind the last one.
        where: URL of the object, or the partition's folder.
        text: What is wrong.
        is_local: Whether local files still hold these offsets.
    """

    topic_partition: TopicPartition
    first_offset: int
    end_offset: int
    where: str
    text: str
    is_local: bool


def verify(
    log_dir: "LogDir", names: Iterable[TopicPartition], *, sizes_only: bool = False
) -> Iterator[Problem]:
    """What is wrong with the tiers of these partitions; nothing is changed, and no lock needed.

    Args:
        log_dir: Open for reading or writing.
        names: Partitions; those without a tier are passed over.
        sizes_only: Compare lengths, which takes one request for each object and reads none.

    Raises:
        StorageFailure: A store failed.
    """
    for name in names:
        yield from _verify(log_dir, name, sizes_only=sizes_only)


def _verify(log_dir: "LogDir", name: TopicPartition, *, sizes_only: bool) -> Iterator[Problem]:
    reader = log_dir.reader(name.topic, name.partition)
    if reader.tier is None:
        return
    record, local_start = reader.tier.record, reader.local_start_offset
    tier = PartitionTier(log_dir.tier_files.store(record.url), record.folder)
    manifest, _ = tier.read()
    where = f"{record.url}/{record.folder}"
    if manifest is None:
        first, end = record.log_start_offset, record.manifest.end_offset
        yield Problem(name, first, end, where, "the manifest is missing", is_local=False)
        return
    for row in manifest.segments:
        for suffix, expected in row.objects.items():
            key = tier.key(row.key(suffix))
            if sizes_only:
                info = tier.store.head(key)
                size = -1 if info is None else info.size
                fits = size == expected.size_bytes
                text = None if fits else f"{size} bytes, {expected.size_bytes} were written"
            else:
                text = object_problem(tier, row, suffix, expected)
            if text is not None:
                is_local = row.base_offset >= local_start
                place = f"{record.url}/{key}"
                yield Problem(name, row.base_offset, row.end_offset, place, text, is_local)
