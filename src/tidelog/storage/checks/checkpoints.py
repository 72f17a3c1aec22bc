"""Checks of the offset checkpoints at the top of a directory."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile
from tidelog.storage import files, text_files
from tidelog.storage.checks.findings import Finding, Severity, derived
from tidelog.storage.checks.place import read_if_there
from tidelog.types import TopicPartition

_REMEDY: Final = {
    files.LOG_START_CHECKPOINT_FILE: (
        "--repair keeps the lines that can be right; where one is lost, records that were deleted"
        " come back until they are deleted again"
    ),
}
_ANY: Final = "--repair keeps the lines that can be right; what is missing is found out anew"


class OffsetBounds(NamedTuple):
    """What offsets a checkpoint may have for a partition: 0 up to the log end, if that is known."""

    log_end: int | None

    def takes(self, offset: int) -> bool:
        """Whether a checkpoint may say so."""
        return offset >= 0 and (self.log_end is None or offset <= self.log_end)


def check_offset_checkpoint(
    fs: FileSystem, path: str, bounds: Mapping[TopicPartition, OffsetBounds]
) -> Iterator[Finding]:
    """What is wrong in a checkpoint; nothing where there is none."""
    remedy = _REMEDY.get(path.rpartition("/")[2], _ANY)
    try:
        offsets = text_files.read_offset_checkpoint(fs, path)
    except CorruptFile as error:
        yield derived(path, error.reason, position=error.at, remedy=remedy)
        return
    for name, offset in offsets.items():
        allowed = bounds.get(name)
        if allowed is not None and not allowed.takes(offset):
            damage = f"{name}: offset {offset}, the log ends at {allowed.log_end}"
            yield derived(path, damage, severity=Severity.WARNING, offset=offset, remedy=remedy)


def rebuild_offset_checkpoint(
    fs: FileSystem, path: str, bounds: Mapping[TopicPartition, OffsetBounds]
) -> bytes:
    """The text of a checkpoint with those of its lines that can be right."""
    data = read_if_there(fs, path) or b""
    kept: dict[TopicPartition, int] = {}
    for line in data.decode("utf-8", "replace").split("\n")[2:]:
        found = _read_line(line)
        if found is not None and found[0] in bounds and bounds[found[0]].takes(found[1]):
            kept[found[0]] = found[1]
    return text_files.encode_offset_checkpoint(dict(sorted(kept.items())))


def _read_line(line: str) -> tuple[TopicPartition, int] | None:
    try:
        topic, partition, offset = line.split()
        number = text_files.parse_number(partition, "partition")
        return TopicPartition(topic, number), text_files.parse_number(offset, "offset")
    except (ValueError, CorruptFile):
        return None
