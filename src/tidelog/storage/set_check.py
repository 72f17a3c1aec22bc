"""What must be known of the messages in a wrapper of magic 0 or 1, and what the log sets in them.

The plain passes here are the reference; kernels may take their place (`SetPasses`), so that storage
needs no numba. The kernels don't say what is wrong with a message: the plain pass does, beginning
with the one that they have found.

Source: docs/format.md#magic-0-and-1; Kafka 3.x LogValidator.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from tidelog.record.header import LENGTH, LENGTH_AT, LOG_OVERHEAD
from tidelog.record.legacy import LegacyBatch
from tidelog.record.legacy_builder import assign_message_offset, stamp_message
from tidelog.storage.append_rules import RecordRules
from tidelog.types import INT64_MAX, INT64_MIN, NO_TIMESTAMP


class SetRules(NamedTuple):
    """What single messages are held against.

    Attributes:
        needs_key: Whether one without a key is refused.
        checks_times: Whether times are limited; -1 never is.
        earliest_ms: The earliest that may be, inclusive.
        latest_ms: The latest, inclusive.
    """

    needs_key: bool
    checks_times: bool
    earliest_ms: int
    latest_ms: int


def set_rules(rules: RecordRules, now_ms: int) -> SetRules:
    """A topic's rules at a time."""
    config = rules.config
    earliest_ms = max(now_ms - config.message_timestamp_before_max_ms, INT64_MIN)
    latest_ms = min(now_ms + config.message_timestamp_after_max_ms, INT64_MAX)
    return SetRules(config.is_compacted, not rules.stamps, earliest_ms, latest_ms)


class RefusedMessage(NamedTuple):
    """A message that the rules refuse: which in the set, its time in ms, whether it has a key."""

    number: int
    timestamp: int
    has_key: bool


class SetFacts(NamedTuple):
    """What one pass finds.

    Attributes:
        record_count: How many messages.
        last_offset: Of the last one, -1 where there is none.
        max_timestamp: The largest time in ms, -1 where none is larger.
        counts_from_0: Whether offsets are 0, 1, 2, ...
        refused: The first of those that the rules refuse.
        refused_count: How many there are in all.
        has_time_error: Whether any of all these is refused for its time alone.
    """

    record_count: int
    last_offset: int
    max_timestamp: int
    counts_from_0: bool
    refused: Sequence[RefusedMessage] = ()
    refused_count: int = 0
    has_time_error: bool = False


class Stamp(NamedTuple):
    """What messages of magic 1 get: a time in ms, None for their own; attributes."""

    timestamp: int | None
    attributes: int


class SetPasses(Protocol):
    """Passes over the uncompressed messages of one magic, which fill `body`."""

    def check(self, body: bytes | memoryview, magic: int, rules: SetRules, limit: int) -> SetFacts:
        """The facts; at most `limit` refused messages are named.

        Raises:
            BrokenMessage: One breaks its format; which rule is not said.
        """
        ...

    def assign(self, body: bytearray, magic: int, first_offset: int, stamp: Stamp) -> None:
        """Give checked messages offsets in a row, and what magic 1 has of times, in place."""
        ...


class BrokenMessage(Exception):
    """A message breaks its format; never leaves storage.

    Attributes:
        at: Its place in the set.
    """

    def __init__(self, at: int) -> None:
        super().__init__(at)
        self.at = at


def gather(
    messages: Iterable[LegacyBatch],
    has_key: Callable[[LegacyBatch], bool],
    rules: SetRules,
    limit: int,
) -> SetFacts:
    """The plain pass; what `has_key` raises of a broken message is raised here."""
    count, last, largest, counts_from_0 = 0, -1, NO_TIMESTAMP, True
    refused: list[RefusedMessage] = []
    refused_count, has_time_error = 0, False
    for message in messages:
        timestamp, is_keyed = message.max_timestamp, has_key(message)
        lacks_key = rules.needs_key and not is_keyed
        if lacks_key or _is_time_refused(timestamp, rules):
            refused_count += 1
            has_time_error |= not lacks_key
            if len(refused) < limit:
                refused.append(RefusedMessage(count, timestamp, is_keyed))
        last = message.last_offset
        counts_from_0 &= last == count
        largest = max(largest, timestamp)
        count += 1
    return SetFacts(count, last, largest, counts_from_0, refused, refused_count, has_time_error)


def _is_time_refused(timestamp: int, rules: SetRules) -> bool:
    if not rules.checks_times or timestamp == NO_TIMESTAMP:
        return False
    return not rules.earliest_ms <= timestamp <= rules.latest_ms


def assign(body: bytearray, magic: int, first_offset: int, stamp: Stamp) -> None:
    """The plain pass; see `SetPasses.assign`."""
    at, offset = 0, first_offset
    while at < len(body):
        (size,) = LENGTH.unpack_from(body, at + LENGTH_AT)
        assign_message_offset(body, at, offset)
        if magic == 1:
            own = LegacyBatch(body, at).max_timestamp
            timestamp = own if stamp.timestamp is None else stamp.timestamp
            stamp_message(body, at, timestamp=timestamp, attributes=stamp.attributes)
        at += LOG_OVERHEAD + size
        offset += 1
