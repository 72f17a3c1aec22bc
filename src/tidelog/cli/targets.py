"""`TOPIC` or `TOPIC:P` on the command line."""

import re
from typing import Final

from tidelog.cli.problems import UsageProblem
from tidelog.directory import Directory
from tidelog.types import TopicPartition

_TARGET: Final = re.compile(r"(?P<topic>[^:]+)(?::(?P<partition>[0-9]{1,10}))?", re.ASCII)


def parse_target(target: str) -> tuple[str, int | None]:
    """Topic and partition, None for all of them; raises UsageProblem."""
    found = _TARGET.fullmatch(target)
    if found is None:
        raise UsageProblem(f"{target}: a topic, or TOPIC:P for one partition, as in flights:0")
    number = found["partition"]
    return found["topic"], None if number is None else int(number)


def partitions_of(directory: Directory, topic: str, number: int | None) -> list[TopicPartition]:
    """The partitions meant; raises UnknownTopic, which says which there are."""
    if number is None:
        return directory.log_dir.partitions(topic)
    directory.partition(topic, number)
    return [TopicPartition(topic, number)]
