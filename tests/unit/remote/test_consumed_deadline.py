"""A read through librdkafka fails if no record arrives in time. Each record restarts the time."""

from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tidelog.env import Env, ManualClock
from tidelog.errors import ClusterFailure
from tidelog.remote import rows
from tidelog.remote.rows import ConsumeSettings, consumed
from tidelog.scan import ScanStats, Split

if TYPE_CHECKING:
    from collections.abc import Iterable
    from contextlib import AbstractContextManager

    from tidelog.types import TopicPartition

TIMEOUT_MS = 1_000
SPLIT = Split(topic="t", partition=0, start_offset=0, end_offset=3, directory="")


class Message(NamedTuple):
    """Record as librdkafka returns it."""

    at: int

    def offset(self) -> int:
        """Return the offset."""
        return self.at

    def value(self) -> bytes:
        """Return the value."""
        return b"v"

    def error(self) -> None:
        """Return None: the message is a record."""


class Consumer:
    """Consumer whose records arrive `gap_ms` apart by a clock that only its polls move."""

    def __init__(self, clock: ManualClock, gap_ms: int, offsets: "Iterable[int]") -> None:
        self._clock, self._gap_ms = clock, gap_ms
        self._offsets = iter(offsets)
        self._is_early = True

    def assign(self, _partitions: object) -> None:
        """Accept every partition."""

    def poll(self, _timeout_s: float) -> Message | None:
        """Return no record half of the gap after the last poll, then a record after the rest."""
        self._clock.advance(self._gap_ms // 2)
        self._is_early = not self._is_early
        at = next(self._offsets, None) if self._is_early else None
        return None if at is None else Message(at)

    def consume(self, _count: int, timeout: float) -> list[Message]:
        """Return no further records."""
        return []

    def close(self) -> None:
        """Close nothing."""


class Cluster:
    """Cluster with one consumer."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer

    def consumer(self, **_settings: str) -> Consumer:
        """Return the consumer."""
        return self._consumer

    def typed(self, _operation: str) -> "AbstractContextManager[None]":
        """Return a context that changes no error."""
        return nullcontext()

    def is_record(self, message: Message, at: int) -> bool:
        """Return whether the offset is not below `at`."""
        return message.at >= at

    def unanswered(
        self, operation: str, _partitions: "Iterable[TopicPartition]", reason: str
    ) -> ClusterFailure:
        """Return the error."""
        return ClusterFailure("leader:9092", operation, reason)

    def close(self) -> None:
        """Close nothing."""


def read(monkeypatch: pytest.MonkeyPatch, gap_ms: int, offsets: "Iterable[int]") -> list[int]:
    """Return the offsets that a read yields; the records with `offsets` arrive `gap_ms` apart."""
    clock = ManualClock(1_700_000_000_000)
    cluster = Cluster(Consumer(clock, gap_ms, offsets))
    monkeypatch.setattr(rows, "connect", lambda *_given, **_more: cluster)
    monkeypatch.setattr(rows, "os_env", lambda: Env(clock=clock))
    settings = ConsumeSettings(bootstrap="leader:9092", progress_timeout_ms=TIMEOUT_MS)
    batches = consumed(SPLIT, ("offset", "value"), settings, ScanStats())
    return [row["offset"] for batch in batches for row in batch.to_pylist()]


def test_slow_records_arrive_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole read takes longer than the time that may pass without a record."""
    assert read(monkeypatch, TIMEOUT_MS - 2, range(3)) == [0, 1, 2]


def test_a_record_that_does_not_arrive_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterFailure, match=r"at or after offset 2 arrived within 1 s"):
        read(monkeypatch, TIMEOUT_MS - 2, range(2))
