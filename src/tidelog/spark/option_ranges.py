"""Options that say where ranges begin and end: offsets and times, for all partitions or by each."""

import json
import re
from collections.abc import Callable, Mapping
from typing import Final

from tidelog.errors import InvalidRequest, InvalidTime
from tidelog.spark.options import READ_OPTIONS, Options
from tidelog.timespec import parse_point
from tidelog.types import EARLIEST_OFFSET, LATEST_OFFSET, TopicPartition

# The option of each side of a batch, the word for where the log begins or ends, and its number.
START: Final = ("startingOffsets", "earliest", EARLIEST_OFFSET)
END: Final = ("endingOffsets", "latest", LATEST_OFFSET)
PerPartition = Mapping[TopicPartition, int]
# One for all partitions, or one for each; None where nothing was said.
Given = int | PerPartition | None


def read_offset_option(options: Options, side: tuple[str, str, int]) -> Given:
    """An offset option: its one word, or JSON by partition.

    Args:
        options: Of the read.
        side: `START` or `END`.
    """
    name, word, special = side
    text = options.text(name)
    if text is None or text.strip().lower() == word:
        return None
    if not text.lstrip().startswith("{"):
        raise InvalidRequest(f"option {name}={text}: {READ_OPTIONS[name]}")

    def read(where: str, value: object) -> int:
        # The other side's word makes no sense in a batch: nothing starts at the end.
        if type(value) is int and (value >= 0 or value == special):
            return value
        raise InvalidRequest(f"{where}: offset {value!r}, a number >= 0 or {special} ({word})")

    return read_by_partition(options, name, read)


def read_time_option(options: Options, name: str, by_partition: str, now_ms: int) -> Given:
    """A time option: one for all partitions, which wins, or JSON by partition."""
    text = options.text(name)
    if text is not None:
        return _read_time(f"option {name}", text, now_ms)
    if options.text(by_partition) is None:
        return None
    return read_by_partition(
        options, by_partition, lambda where, value: _read_time(where, value, now_ms)
    )


def time_texts(options: Options, start_ms: Given, end_ms: Given) -> dict[int, str]:
    """Times that were given as text, not as a number of ms, and that text."""
    found = {}
    for name, time_ms in (("startingTimestamp", start_ms), ("endingTimestamp", end_ms)):
        text = (options.text(name) or "").strip()
        if isinstance(time_ms, int) and text and not text.lstrip("-").isdigit():
            found[time_ms] = text
    return found


def _read_time(where: str, value: object, now_ms: int) -> int:
    if isinstance(value, str | int) and not isinstance(value, bool):
        try:
            return parse_point(str(value), now_ms=now_ms)
        except InvalidTime as error:
            raise InvalidTime(error.text, f"{where}: {error.reason}") from error
    raise InvalidRequest(f"{where}: time {value!r}, ms since the epoch or a text")


def read_by_partition(
    options: Options, name: str, read: Callable[[str, object], int]
) -> PerPartition:
    """`{"topic": {"0": VALUE}}` as values by partition.

    Args:
        options: Of the read.
        name: The option.
        read: Reads a value; told first what errors begin with, option and partition.
    """
    found: dict[TopicPartition, int] = {}
    for topic, values in options.json(name).items():
        if not isinstance(values, dict):
            raise InvalidRequest(
                f"option {name}: topic {topic} has {json.dumps(values)}; {READ_OPTIONS[name]}"
            )
        for number, value in values.items():
            if not re.fullmatch(r"[0-9]{1,9}", number):
                raise InvalidRequest(
                    f"option {name}: {number!r} is no number of a partition of topic {topic}"
                )
            partition = TopicPartition(topic, int(number))
            found[partition] = read(f"option {name}, {partition}", value)
    return found
