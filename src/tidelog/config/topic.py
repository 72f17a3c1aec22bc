"""Topic settings as typed values (`TopicConfig`), and the names that people may write for them.

Resolution handles synonyms, retired names, spelling and ranges. Within one mapping a setting's own
name wins over its synonyms, and finer units win over coarser ones, as in Kafka. A topic's mapping
wins over the broker's. A `ConfigNote` reports each value that was renamed, converted or dropped.

Source: Kafka 4.3's `LogConfig`; KIP-32 and KIP-33 for the older names.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self, cast

from tidelog.config.topic_keys import (
    CLEANUP_COMPACT,
    CLEANUP_DELETE,
    RETIRED,
    TOPIC_CONFIG_BY_NAME,
    TOPIC_CONFIGS,
    TWO_SIDED_LIMIT_KEYS,
    TWO_SIDED_LIMITS,
)
from tidelog.config.values import (
    CompactionScheduler,
    CompactionStrategy,
    CompressionType,
    ConfigKey,
    ConfigValue,
    KeyHash,
    RetentionClock,
    Synonym,
    ensure_tellable,
    parse_integer,
    text_of,
)
from tidelog.errors import ConfigError
from tidelog.types import INT64_MAX, ClockName, Codec, TimestampType


class NoteKind(StrEnum):
    """What became of a setting that was not taken literally."""

    RENAMED = "renamed"
    SHADOWED = "shadowed"
    RETIRED = "retired"
    NO_EFFECT = "no effect"
    ADVICE = "advice"


@dataclass(frozen=True, slots=True)
class ConfigNote:
    """Something to tell whoever wrote a setting.

    Attributes:
        kind: What became of it.
        given: The name as written.
        text: One line that says what was done instead, or what follows.
    """

    kind: NoteKind
    given: str
    text: str

    def __str__(self) -> str:
        return f"{self.given}: {self.text}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One key's value and the name under which it was given."""

    key: ConfigKey
    value: ConfigValue
    given: str


def _find_synonyms() -> dict[str, tuple[ConfigKey, Synonym]]:
    synonyms = {}
    for key in TOPIC_CONFIGS:
        for synonym in key.synonyms:
            # compression.type and a few others have one name on both levels.
            if synonym.name not in TOPIC_CONFIG_BY_NAME:
                synonyms[synonym.name] = (key, synonym)
    return synonyms


_SYNONYMS: Final = _find_synonyms()


_KNOWN_NAMES: Final = (*TOPIC_CONFIG_BY_NAME, *_SYNONYMS, *TWO_SIDED_LIMITS, *RETIRED)


_BROKER_NAMES: Final = frozenset(
    {synonym.name for key in TOPIC_CONFIGS for synonym in key.synonyms}
    | {name for name in TOPIC_CONFIG_BY_NAME if name.startswith("tidelog.")}
    | {*_SYNONYMS, *TWO_SIDED_LIMITS, *RETIRED}
)


def broker_names() -> frozenset[str]:
    """Names under which a broker's settings give topics their defaults."""
    return _BROKER_NAMES


def resolve(
    texts: Mapping[str, str], *, ignore_unknown: bool = False
) -> tuple[dict[str, Setting], list[ConfigNote]]:
    """What a mapping sets, by key name, in the table's order.

    Args:
        texts: Names (any that the table knows) and texts.
        ignore_unknown: For a broker's mapping, which holds settings that are not topics'.

    Returns:
        The settings, and what to tell their author.

    Raises:
        ConfigError: An unknown name or a value outside its range.
    """
    settings: dict[str, Setting] = {}
    notes: list[ConfigNote] = []
    for name in texts:
        if not ignore_unknown:
            key_names(name)
        if name in RETIRED:
            notes.append(ConfigNote(NoteKind.RETIRED, name, f"has no effect: {RETIRED[name]}"))
    for setting in _candidates(texts):
        winner = settings.setdefault(setting.key.name, setting)
        notes.extend(_notes(setting, winner))
    ordered = {key.name: settings[key.name] for key in TOPIC_CONFIGS if key.name in settings}
    return ordered, notes


def plain_names(texts: Mapping[str, str]) -> tuple[dict[str, str], list[ConfigNote]]:
    """The same settings for brokers, which know a topic's by the keys' own names alone.

    Args:
        texts: Names and texts. What is no older or broker's name passes as it is: brokers may know
            more than our table does.

    Returns:
        Names and texts, and what to tell their author.

    Raises:
        ConfigError: The value of an older name is outside its range.
    """
    older = {name for name in texts if name in _SYNONYMS or name in TWO_SIDED_LIMITS}
    plain = {name: text for name, text in texts.items() if name not in older}
    meant = older.union(*map(key_names, older))
    settings, notes = resolve({name: text for name, text in texts.items() if name in meant})
    resolved = {name: text_of(setting.value) for name, setting in settings.items()}
    return resolved | plain, [note for note in notes if note.given in older]


def key_names(name: str) -> tuple[str, ...]:
    """The keys that a name stands for: mostly one, two for KIP-32's limit, none where retired.

    Raises:
        ConfigError: Nobody knows the name.
    """
    if name in TOPIC_CONFIG_BY_NAME:
        return (name,)
    if name in _SYNONYMS:
        return (_SYNONYMS[name][0].name,)
    if name in TWO_SIDED_LIMITS:
        return TWO_SIDED_LIMIT_KEYS
    if name in RETIRED:
        return ()
    raise _unknown(name)


def _candidates(texts: Mapping[str, str]) -> Iterator[Setting]:
    """All settings in a mapping; of several for one key the winning one first."""
    for key in TOPIC_CONFIGS:
        if key.name in texts:
            yield Setting(key, _read(key, key.name, texts[key.name]), key.name)
        for synonym in key.synonyms:
            if synonym.name != key.name and synonym.name in texts:
                value = _read(key, synonym.name, texts[synonym.name], synonym.factor)
                yield Setting(key, value, synonym.name)
    for name in TWO_SIDED_LIMITS:
        if name in texts:
            for key in map(TOPIC_CONFIG_BY_NAME.__getitem__, TWO_SIDED_LIMIT_KEYS):
                yield Setting(key, _read(key, name, texts[name]), name)


def _read(key: ConfigKey, name: str, text: str, factor: int = 1) -> ConfigValue:
    """A text's value; ConfigError under the name that was written."""
    try:
        # Negative hours mean what -1 ms means: no limit.
        scaled = text if factor == 1 else str(max(parse_integer(text) * factor, -1))
        return key.kind.parse(scaled)
    except ValueError:
        unit = "" if factor == 1 else f" (times {factor} it is {key.name})"
        raise ConfigError(name, text, f"must be {key.kind.allowed}{unit}") from None


def _notes(setting: Setting, winner: Setting) -> Iterator[ConfigNote]:
    key = setting.key
    if setting is not winner:
        text = f"{winner.given} wins over it for {key.name}"
        yield ConfigNote(NoteKind.SHADOWED, setting.given, text)
    elif setting.given != key.name:
        text = f"taken as {key.name}={text_of(setting.value)}"
        yield ConfigNote(NoteKind.RENAMED, setting.given, text)
    if not key.has_effect and setting.value != key.default_value:
        text = "kept for Kafka's sake, it changes nothing here"
        yield ConfigNote(NoteKind.NO_EFFECT, setting.given, text)


def _unknown(name: str) -> ConfigError:
    """The error for a name that nobody defined, with the nearest one that somebody did."""
    import difflib  # only for errors: it costs 3 ms

    words = difflib.get_close_matches(name.lower().replace("_", "."), _KNOWN_NAMES, n=1)
    hint = f"; did you mean {words[0]}?" if words else ""
    return ConfigError(name, None, f"is not a topic setting{hint}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Every topic setting, under its name with underscores; docs/config.md says what each does.

    Made by `parse`, which checks names and ranges; the constructor trusts its caller. The field
    defaults are those of the table (a test compares them).
    """

    message_timestamp_type: TimestampType = TimestampType.CREATE_TIME
    message_timestamp_before_max_ms: int = INT64_MAX
    message_timestamp_after_max_ms: int = 3_600_000
    segment_bytes: int = 1_073_741_824
    internal_segment_bytes: int | None = None
    segment_ms: int = 604_800_000
    segment_jitter_ms: int = 0
    segment_index_bytes: int = 10_485_760
    index_interval_bytes: int = 4096
    preallocate: bool = False
    flush_messages: int = INT64_MAX
    flush_ms: int = INT64_MAX
    cleanup_policy: tuple[str, ...] = (CLEANUP_DELETE,)
    retention_ms: int = 604_800_000
    retention_bytes: int = -1
    file_delete_delay_ms: int = 60_000
    delete_retention_ms: int = 86_400_000
    min_cleanable_dirty_ratio: float = 0.5
    min_compaction_lag_ms: int = 0
    max_compaction_lag_ms: int = INT64_MAX
    tidelog_compaction_min_dirty_bytes: int = -1
    tidelog_compaction_strategy: CompactionStrategy = CompactionStrategy.OFFSET
    tidelog_compaction_strategy_header: str = ""
    tidelog_compaction_scheduler: CompactionScheduler = CompactionScheduler.BRUTE_FORCE
    tidelog_compaction_space_factor: float = 2.0
    tidelog_cleaner_hash: KeyHash = KeyHash.SIPHASH
    tidelog_cleaner_verify_keys: bool = False
    max_message_bytes: int = 1_048_588
    compression_type: CompressionType = CompressionType.PRODUCER
    compression_gzip_level: int = -1
    compression_lz4_level: int = 9
    compression_zstd_level: int = 3
    tidelog_append_time_enable: bool = True
    tidelog_append_time_granularity_ms: int = 1
    tidelog_retention_clock: RetentionClock = RetentionClock.RECORD_CAPPED
    tidelog_lookup_clock: ClockName = ClockName.RECORD
    tidelog_expose_append_time: bool = False
    tidelog_max_clock_jump_ms: int = 3_600_000
    min_insync_replicas: int = 1
    unclean_leader_election_enable: bool = False
    leader_replication_throttled_replicas: tuple[str, ...] = ()
    follower_replication_throttled_replicas: tuple[str, ...] = ()
    remote_storage_enable: bool = False
    remote_log_copy_disable: bool = False
    remote_log_delete_on_disable: bool = False
    local_retention_ms: int = -2
    local_retention_bytes: int = -2
    tidelog_tier_url: str = ""

    @classmethod
    def parse(
        cls, given: Mapping[str, str], *, broker: Mapping[str, str] | None = None
    ) -> tuple[Self, list[ConfigNote]]:
        """The settings of a topic, and what to tell those who wrote them.

        Args:
            given: The topic's own settings; the broker's names and older ones are understood.
            broker: Settings of a broker, which serve where the topic has none; names in it that
                are not about topics are passed over.

        Raises:
            ConfigError: An unknown name, a value outside its range, or two that contradict.
        """
        below, broker_notes = resolve(broker or {}, ignore_unknown=True)
        above, notes = resolve(given)
        settings = below | above
        values = {setting.key.attribute: setting.value for setting in settings.values()}
        config = cast("Callable[..., Self]", cls)(**values)
        config.ensure_consistent()
        return config, [*broker_notes, *notes, *_advice(config, settings)]

    def ensure_consistent(self) -> None:
        """Check what no single key can: raises ConfigError where two settings contradict."""
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise ConfigError(
                "min.compaction.lag.ms",
                str(self.min_compaction_lag_ms),
                f"must not be over max.compaction.lag.ms={self.max_compaction_lag_ms}",
            )
        by_header = self.tidelog_compaction_strategy is CompactionStrategy.HEADER
        if by_header != bool(self.tidelog_compaction_strategy_header):
            raise ConfigError(
                "tidelog.compaction.strategy.header",
                self.tidelog_compaction_strategy_header,
                "must be given with tidelog.compaction.strategy=header, and only with that",
            )

    def text(self, name: str) -> str:
        """A setting's value as Kafka prints it; raises ConfigError for an unknown name."""
        key = TOPIC_CONFIG_BY_NAME.get(name)
        if key is None:
            raise ConfigError(name, None, "is not a topic setting")
        return text_of(cast("ConfigValue | None", getattr(self, key.attribute)))

    def texts(self) -> dict[str, str]:
        """All settings by Kafka's name, in the table's order; unset ones are left out."""
        texts = {key.name: self.text(key.name) for key in TOPIC_CONFIGS}
        return {name: text for name, text in texts.items() if text or name == "cleanup.policy"}

    @property
    def is_compacted(self) -> bool:
        """Whether the last record of each key is what matters; null keys are refused then."""
        return CLEANUP_COMPACT in self.cleanup_policy

    @property
    def is_deleted_by_age_or_size(self) -> bool:
        """Whether retention.ms and retention.bytes apply."""
        return CLEANUP_DELETE in self.cleanup_policy

    @property
    def may_delete_records(self) -> bool:
        """Whether clients may; no policy at all forbids nothing."""
        return not self.is_compacted or self.is_deleted_by_age_or_size

    @property
    def segment_size_limit(self) -> int:
        """Bytes at which a segment rolls: internal.segment.bytes where set, else segment.bytes."""
        if self.internal_segment_bytes is None:
            return self.segment_bytes
        return self.internal_segment_bytes

    @property
    def roll_ms(self) -> int:
        """Span of a segment in ms; on a compacted topic max.compaction.lag.ms can lower it."""
        if self.is_compacted:
            return min(self.max_compaction_lag_ms, self.segment_ms)
        return self.segment_ms

    def compression_level(self, codec: Codec) -> int | None:
        """The level to compress with; None for a codec without levels."""
        match codec:
            case Codec.GZIP:
                return self.compression_gzip_level
            case Codec.LZ4:
                return self.compression_lz4_level
            case Codec.ZSTD:
                return self.compression_zstd_level
            case _:
                return None


def normalize(given: Mapping[str, str]) -> tuple[dict[str, str], list[ConfigNote]]:
    """A mapping under Kafka's present names and spelling, for keeping; errors as `parse`.

    Source: what a topic's registry entry holds, so that old names don't outlive their author.
    """
    settings, notes = resolve(given)
    for name, text in given.items():
        ensure_tellable(name, text)
    return {name: text_of(setting.value) for name, setting in settings.items()}, notes


def _advice(config: TopicConfig, settings: Mapping[str, Setting]) -> Iterator[ConfigNote]:
    """Legal settings that hurt, told only to those who set them."""
    if 0 < config.roll_ms <= config.segment_jitter_ms and "segment.jitter.ms" in settings:
        text = f"as large as the roll time ({config.roll_ms} ms), so any record may roll a segment"
        yield ConfigNote(NoteKind.ADVICE, settings["segment.jitter.ms"].given, text)
    # KAFKA-4092: only whole segments go, so the limit can't be kept.
    if 0 <= config.retention_bytes < config.segment_size_limit and "retention.bytes" in settings:
        text = f"less than a segment ({config.segment_size_limit} bytes), which goes only whole"
        yield ConfigNote(NoteKind.ADVICE, settings["retention.bytes"].given, text)


DEFAULT_TOPIC_CONFIG: Final = TopicConfig()
