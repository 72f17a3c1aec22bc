"""By which rule a log is compacted: which record of a key is the latest, and with what memory.

Owns no decision on a single record (`cleaning`). Source: KIP-280; Kafka 4.x CleanerConfig.
"""

from dataclasses import asdict, dataclass
from typing import Final, Self

from tidelog.config.values import LOAD_FACTOR_MAX
from tidelog.errors import ConfigError, CorruptFile
from tidelog.storage.tiers.fields import Fields
from tidelog.types import INT32_MAX

OFFSET_STRATEGY: Final = "offset"
TIMESTAMP_STRATEGY: Final = "timestamp"
HEADER_STRATEGY: Final = "header"
STRATEGIES: Final = (OFFSET_STRATEGY, TIMESTAMP_STRATEGY, HEADER_STRATEGY)

SIPHASH: Final = "siphash"
MD5: Final = "md5"
HASH_NAMES: Final = (SIPHASH, MD5)

# Kafka's smallest: below it a map holds so few keys that a log is read over and over.
DEDUPE_BUFFER_BYTES_MIN: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionRules:
    """The settings that a cleaning goes by.

    Attributes:
        strategy: Which record of a key stays: the one with the highest `offset`, the highest
            record `timestamp`, or the highest version in a `header`; of equal ones the one with
            the highest offset.
        header: Name of the version header for that strategy, else empty. Its last occurrence
            counts, 8 bytes, a big-endian int64; a record without one, or with another length,
            comes after all that have one.
        delete_retention_ms: How long tombstones and markers stay after they were first cleaned.
        hash_name: How keys are hashed, `siphash` (with a fresh secret) or `md5`.
        verify_keys: Keep the keys themselves, so that equal hashes of different keys are told
            apart; the keys then take their room from the same buffer.
        dedupe_buffer_bytes: Memory of the offset map, keys included.
        load_factor: Part of its slots that may be used, at most 0.9.
        index_interval_bytes: As the topic's `index.interval.bytes`.
        segment_index_bytes: As the topic's `segment.index.bytes`.
    """

    strategy: str = OFFSET_STRATEGY
    header: str = ""
    delete_retention_ms: int = 86_400_000
    hash_name: str = SIPHASH
    verify_keys: bool = False
    dedupe_buffer_bytes: int = 128 << 20
    load_factor: float = 0.9
    index_interval_bytes: int = 4096
    segment_index_bytes: int = 10 << 20

    def __post_init__(self) -> None:
        """Refuse what can't be meant; raises ConfigError."""
        if self.strategy not in STRATEGIES:
            raise ConfigError("compaction strategy", self.strategy, f"one of {STRATEGIES}")
        if (self.strategy == HEADER_STRATEGY) != bool(self.header):
            allowed = f"a name for the strategy {HEADER_STRATEGY}, and only for that"
            raise ConfigError("compaction header", self.header, allowed)
        if self.hash_name not in HASH_NAMES:
            raise ConfigError("hash of keys", self.hash_name, f"one of {HASH_NAMES}")
        if self.delete_retention_ms < 0:
            raise ConfigError("delete.retention.ms", str(self.delete_retention_ms), "0 or more")
        if self.dedupe_buffer_bytes < DEDUPE_BUFFER_BYTES_MIN:
            allowed = f"{DEDUPE_BUFFER_BYTES_MIN} or more"
            raise ConfigError(
                "log.cleaner.dedupe.buffer.size", str(self.dedupe_buffer_bytes), allowed
            )
        if not 0.0 < self.load_factor <= LOAD_FACTOR_MAX:
            allowed = f"above 0, at most {LOAD_FACTOR_MAX}"
            raise ConfigError("log.cleaner.io.buffer.load.factor", str(self.load_factor), allowed)
        self._check_indexes()

    def _check_indexes(self) -> None:
        if not 0 <= self.index_interval_bytes <= INT32_MAX:
            allowed = f"0 to {INT32_MAX}"
            raise ConfigError("index.interval.bytes", str(self.index_interval_bytes), allowed)
        if not 0 < self.segment_index_bytes <= INT32_MAX:
            allowed = f"1 to {INT32_MAX}"
            raise ConfigError("segment.index.bytes", str(self.segment_index_bytes), allowed)

    @property
    def has_versions(self) -> bool:
        """Whether more than the offset decides, so that the whole log has to be mapped."""
        return self.strategy != OFFSET_STRATEGY

    def to_fields(self) -> dict[str, object]:
        """The rules as values that JSON knows."""
        return asdict(self)

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """What `to_fields` gave; raises CorruptFile for another shape, ConfigError for a value."""
        return cls(
            strategy=fields.text("strategy"),
            header=fields.text("header"),
            delete_retention_ms=fields.integer("delete_retention_ms"),
            hash_name=fields.text("hash_name"),
            verify_keys=fields.flag("verify_keys"),
            dedupe_buffer_bytes=fields.integer("dedupe_buffer_bytes"),
            load_factor=_number(fields, "load_factor"),
            index_interval_bytes=fields.integer("index_interval_bytes"),
            segment_index_bytes=fields.integer("segment_index_bytes"),
        )


def _number(fields: Fields, name: str) -> float:
    value = fields.value(name)
    if not isinstance(value, float):
        raise CorruptFile(f"{fields.what}: `{name}` is {str(value)[:80]}, a number expected")
    return value
