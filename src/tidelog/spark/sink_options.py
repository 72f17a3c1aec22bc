"""What a write by `format("tidelog")` was asked for, from its options."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tidelog.env import Env, ManualClock, os_env
from tidelog.spark.options import WRITE_OPTIONS, Options
from tidelog.types import Codec

BATCH_BYTES: Final = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """What a write was asked for.

    Attributes:
        path: Directory of topics.
        topic: Topic of all rows, None where each names its own.
        codec: Compression for topics that leave it to the producer.
        batch_bytes: Where a batch is closed, before compression.
        clock_ms: What the log's clock says; the machine's where None.
    """

    path: str
    topic: str | None
    codec: Codec
    batch_bytes: int
    clock_ms: int | None

    def env(self) -> Env:
        """Files and clock of the write."""
        return os_env() if self.clock_ms is None else Env(clock=ManualClock(self.clock_ms))


def read_sink_options(given: Mapping[str, str]) -> SinkOptions:
    """The options of a write; raises InvalidRequest for one that is missing, unknown or wrong."""
    options = Options(given, WRITE_OPTIONS)
    return SinkOptions(
        path=options.need("path", "the directory of topics"),
        topic=options.text("topic"),
        codec=options.choice("compression", {c.config_name: c for c in Codec}, "none"),
        batch_bytes=options.number("batchBytes", BATCH_BYTES),
        clock_ms=options.number("clock.ms", 0) if options.text("clock.ms") else None,
    )
