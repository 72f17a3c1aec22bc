"""Topic settings as typed values (`TopicConfig`), and the names that users may write for them.

The fields of `TopicConfig` are the table of the settings: name, type, default, range, synonyms and
documentation of each. tools/config_docs.py generates docs/config.md from it. Names, defaults and
ranges are Kafka 4.3's, read from its `LogConfig` at run time.

Resolution handles synonyms, retired names, spelling and ranges. Within one mapping a setting's own
name wins over its synonyms, and finer units win over coarser ones, as in Kafka. A topic's mapping
wins over the broker's. A `ConfigNote` reports each value that was renamed, converted or dropped.

Source: Kafka 4.3's `LogConfig`; KIP-32 and KIP-33 for the older names.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple, Self, cast

from tidelog.config.values import (
    COMPACTION_SCHEDULER,
    COMPACTION_STRATEGY,
    COMPRESSION,
    FLAG,
    KEY_HASH,
    LOOKUP_CLOCK,
    RATIO,
    REPLICAS,
    RETENTION_CLOCK,
    SPACE_FACTOR,
    STORE_URL,
    TEXT,
    TIMESTAMP_TYPE,
    CompactionScheduler,
    CompactionStrategy,
    CompressionType,
    ConfigKey,
    ConfigValue,
    KeyHash,
    RetentionClock,
    Synonym,
    config_field,
    ensure_tellable,
    int32,
    int64,
    keys_of,
    parse_integer,
    text_of,
    unknown_setting,
    word_list,
)
from tidelog.errors import ConfigError
from tidelog.lazy_dataclass import dataclass
from tidelog.types import HOUR_MS, MINUTE_MS, ClockName, Codec, TimestampType


class NoteKind(StrEnum):
    """Reason of a note about a setting."""

    RENAMED = "renamed"
    SHADOWED = "shadowed"
    RETIRED = "retired"
    NO_EFFECT = "no effect"
    ADVICE = "advice"


@dataclass(frozen=True, slots=True)
class ConfigNote:
    """Note about a setting for its user.

    Attributes:
        kind: Reason of the note.
        given: Name as written.
        text: One line: what happens instead, or the consequence.
    """

    kind: NoteKind
    given: str
    text: str

    def __str__(self) -> str:
        return f"{self.given}: {self.text}"


_INT64_MAX_TEXT: Final = "9223372036854775807"

CLEANUP_COMPACT: Final = "compact"
CLEANUP_DELETE: Final = "delete"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """All topic settings, by name with underscores; docs/config.md describes each.

    Created by `parse`, which validates names and ranges; the constructor does not. Settings are
    described in the order of the fields.
    """

    message_timestamp_type: TimestampType = config_field(
        TIMESTAMP_TYPE,
        "CreateTime",
        "Whose time a record shows: the producer's (CreateTime) or the log's at the append"
        " (LogAppendTime). The producer's own time stays in the file either way.",
        synonyms=(Synonym("log.message.timestamp.type"),),
    )
    message_timestamp_before_max_ms: int = config_field(
        int64(0),
        _INT64_MAX_TEXT,
        "How far a create time may be behind the log's clock, in ms; a record further behind"
        " is refused. Not looked at on LogAppendTime topics.",
        synonyms=(Synonym("log.message.timestamp.before.max.ms"),),
    )
    message_timestamp_after_max_ms: int = config_field(
        int64(0),
        "3600000",
        "How far a create time may lie ahead of the log's clock, in ms; a record further ahead"
        " is refused, since a time in the future keeps its segment alive. Not looked at on"
        " LogAppendTime topics.",
        synonyms=(Synonym("log.message.timestamp.after.max.ms"),),
    )

    segment_bytes: int = config_field(
        int32(1_048_576),
        "1073741824",
        "Size in bytes at which a segment is rolled; also the largest single append.",
        synonyms=(Synonym("log.segment.bytes"),),
    )
    internal_segment_bytes: int | None = config_field(
        int32(1), None, "Takes the place of segment.bytes without its lower limit. For tests only."
    )
    segment_ms: int = config_field(
        int64(1),
        "604800000",
        "Span of record time in ms after which a segment is rolled, from its first record's"
        " timestamp; by the wall clock where records have none.",
        synonyms=(Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS)),
    )
    segment_jitter_ms: int = config_field(
        int64(0),
        "0",
        "Largest random time in ms taken off segment.ms, so that not all roll at once.",
        synonyms=(Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS)),
    )
    segment_index_bytes: int = config_field(
        int32(4),
        "10485760",
        "Size limit in bytes of a segment's offset index, and of its time index; a full one"
        " rolls the segment. Time entries are 1.5 times as large, so that index is full first.",
        synonyms=(Synonym("log.index.size.max.bytes"),),
    )
    index_interval_bytes: int = config_field(
        int32(0),
        "4096",
        "Bytes of log between two index entries. Smaller: larger indexes, shorter scans.",
        synonyms=(Synonym("log.index.interval.bytes"),),
    )
    preallocate: bool = config_field(
        FLAG,
        "false",
        "Kafka extends a new segment's file to its full size at once. Files written here grow.",
        synonyms=(Synonym("log.preallocate"),),
        has_effect=False,
    )
    flush_messages: int = config_field(
        int64(1),
        _INT64_MAX_TEXT,
        "How many records may be appended before the log is synced to the disk.",
        synonyms=(Synonym("log.flush.interval.messages"),),
    )
    flush_ms: int = config_field(
        int64(0),
        _INT64_MAX_TEXT,
        "Longest time in ms that an appended record stays unsynced.",
        synonyms=(Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    )

    cleanup_policy: tuple[str, ...] = config_field(
        word_list(CLEANUP_COMPACT, CLEANUP_DELETE),
        CLEANUP_DELETE,
        "How old data goes: `delete` whole segments by size and time, `compact` to the last"
        " record of each key, both, or (empty) neither. A compacted topic refuses null keys.",
        synonyms=(Synonym("log.cleanup.policy"),),
    )
    retention_ms: int = config_field(
        int64(-1),
        "604800000",
        "A segment goes when its largest timestamp is older than this many ms; -1: never."
        " tidelog.retention.clock says how timestamps count.",
        synonyms=(
            Synonym("log.retention.ms"),
            Synonym("log.retention.minutes", MINUTE_MS),
            Synonym("log.retention.hours", HOUR_MS),
        ),
    )
    retention_bytes: int = config_field(
        int64(None),
        "-1",
        "The oldest segments go while the partition is larger than this many bytes without"
        " them; negative is no limit.",
        synonyms=(Synonym("log.retention.bytes"),),
    )
    file_delete_delay_ms: int = config_field(
        int64(0),
        "60000",
        "How long in ms a deleted segment's files stay, renamed, for those who read them.",
        synonyms=(Synonym("log.segment.delete.delay.ms"),),
    )

    delete_retention_ms: int = config_field(
        int64(0),
        "86400000",
        "How long in ms a tombstone stays after the first compaction that met it, also on a log"
        " that takes no more records; it goes with a run at most a tenth of that later (by"
        " generations at most 1.1 times that).",
        synonyms=(Synonym("log.cleaner.delete.retention.ms"),),
    )
    min_cleanable_dirty_ratio: float = config_field(
        RATIO,
        "0.5",
        "Part of the log that must be uncompacted before a compaction is worth it.",
        synonyms=(Synonym("log.cleaner.min.cleanable.ratio"),),
    )
    min_compaction_lag_ms: int = config_field(
        int64(0),
        "0",
        "How long in ms a record stays out of compaction, counted from its timestamp, but not"
        " from later than its append time unless tidelog.retention.clock is `record`. May not be"
        " over max.compaction.lag.ms.",
        synonyms=(Synonym("log.cleaner.min.compaction.lag.ms"),),
    )
    max_compaction_lag_ms: int = config_field(
        int64(1),
        _INT64_MAX_TEXT,
        "How long in ms a record may wait for compaction; on compacted topics it lowers"
        " segment.ms. A broker also rolls an idle segment for it.",
        synonyms=(Synonym("log.cleaner.max.compaction.lag.ms"),),
    )
    tidelog_compaction_min_dirty_bytes: int = config_field(
        int64(1, None, -1),
        "-1",
        "Uncompacted bytes from which on a compaction is worth it whatever"
        " min.cleanable.dirty.ratio says; -1 for none.",
        synonyms=(Synonym("tidelog.compaction.min.dirty.bytes"),),
    )
    tidelog_compaction_strategy: CompactionStrategy = config_field(
        COMPACTION_STRATEGY,
        "offset",
        "Which record of a key stays: the one with the highest `offset`, as in Kafka, the"
        " highest record `timestamp`, or the highest version in a `header`; of equal ones the one"
        " with the highest offset.",
        synonyms=(Synonym("tidelog.compaction.strategy"),),
    )
    tidelog_compaction_strategy_header: str = config_field(
        TEXT,
        "",
        "Name of the version header for tidelog.compaction.strategy=header: 8 bytes, a"
        " big-endian int64. A record without one is older than all that have one.",
        synonyms=(Synonym("tidelog.compaction.strategy.header"),),
    )
    tidelog_compaction_scheduler: CompactionScheduler = config_field(
        COMPACTION_SCHEDULER,
        "brute-force",
        "What a compaction rewrites: `brute-force` everything, as Kafka, when"
        " min.cleanable.dirty.ratio or tidelog.compaction.min.dirty.bytes asks for it;"
        " `generational` the segments with the most garbage for the bytes that move, when"
        " tidelog.compaction.space.factor is reached: far less is written, more is read.",
        synonyms=(Synonym("tidelog.compaction.scheduler"),),
    )
    tidelog_compaction_space_factor: float = config_field(
        SPACE_FACTOR,
        "2.0",
        "With tidelog.compaction.scheduler=generational: how many times its live size a log may"
        " take, its active segment included, before it is compacted.",
        synonyms=(Synonym("tidelog.compaction.space.factor"),),
    )
    tidelog_cleaner_hash: KeyHash = config_field(
        KEY_HASH,
        "siphash",
        "How a compaction hashes keys to 128 bits: `siphash` with a secret that is drawn for"
        " each run, or `md5`.",
        synonyms=(Synonym("tidelog.cleaner.hash"),),
    )
    tidelog_cleaner_verify_keys: bool = config_field(
        FLAG,
        "false",
        "Compare the keys themselves before a record is dropped, so that not even two keys of"
        " equal hashes are treated as one; the keys then take their room from the offset map's.",
        synonyms=(Synonym("tidelog.cleaner.verify.keys"),),
    )

    max_message_bytes: int = config_field(
        int32(0),
        "1048588",
        "Largest batch in bytes as it lies in the file, header and compression included.",
        synonyms=(Synonym("message.max.bytes"),),
    )
    compression_type: CompressionType = config_field(
        COMPRESSION,
        "producer",
        "Codec of the batches in the file; `producer` keeps what was sent.",
        synonyms=(Synonym("compression.type"),),
    )
    compression_gzip_level: int = config_field(
        int32(1, 9, extra=-1),
        "-1",
        "Level for gzip, where the log itself compresses; -1 is zlib's default.",
        synonyms=(Synonym("compression.gzip.level"),),
    )
    compression_lz4_level: int = config_field(
        int32(1, 17),
        "9",
        "Level for lz4, where the log itself compresses; 9 is the fast compressor.",
        synonyms=(Synonym("compression.lz4.level"),),
    )
    compression_zstd_level: int = config_field(
        int32(-131_072, 22),
        "3",
        "Level for zstd, where the log itself compresses.",
        synonyms=(Synonym("compression.zstd.level"),),
    )

    tidelog_append_time_enable: bool = config_field(
        FLAG,
        "true",
        "Whether each record's append time is kept (BASE.appendtime). Without it every"
        " question on the append clock answers `unknown` for what is appended meanwhile.",
    )
    tidelog_append_time_granularity_ms: int = config_field(
        int64(1),
        "1",
        "Step of the append clock in ms; append times are rounded down to it. Larger steps"
        " make smaller files. Look-ups and ranges by append time begin up to one step early, so"
        " that they miss no record.",
    )
    tidelog_retention_clock: RetentionClock = config_field(
        RETENTION_CLOCK,
        "record-capped",
        "Which time retention.ms counts from. `record`: the largest timestamp, Kafka's rule;"
        " `append`: the largest append time; `record-capped`: the largest timestamp, each counted"
        " at most as its record's append time, so that one in the future keeps nothing forever."
        " If an append time is not known, the earlier of the segment's modification time and the"
        " time at which it was first seen is used.",
    )
    tidelog_lookup_clock: ClockName = config_field(
        LOOKUP_CLOCK,
        "record",
        "Which of a record's two times a broker's lookups (ListOffsets, offsetsForTimes) go by"
        " and answer with: `record`, as Kafka, or `append`.",
    )
    tidelog_expose_append_time: bool = config_field(
        FLAG,
        "false",
        "Whether a broker adds each record's append time to what it answers to fetches, as the"
        " header `tidelog.append.time`: ms since the epoch, 8 bytes, big-endian. Batches are"
        " rebuilt for it, which costs time; formats 0 and 1 have no headers and stay as they are.",
    )
    tidelog_max_clock_jump_ms: int = config_field(
        int64(1),
        "3600000",
        "Largest jump ahead of the wall clock in ms that the append clock follows by itself;"
        " beyond it appends wait for an explicit accept, since append time never runs back.",
    )

    min_insync_replicas: int = config_field(
        int32(1),
        "1",
        "Replicas that must have a record before it is acknowledged; here there is one.",
        synonyms=(Synonym("min.insync.replicas"),),
        has_effect=False,
    )
    unclean_leader_election_enable: bool = config_field(
        FLAG,
        "false",
        "Whether a replica that lags may become leader; here there is one.",
        synonyms=(Synonym("unclean.leader.election.enable"),),
        has_effect=False,
    )
    leader_replication_throttled_replicas: tuple[str, ...] = config_field(
        REPLICAS, "", "Replicas whose leader side is throttled.", has_effect=False
    )
    follower_replication_throttled_replicas: tuple[str, ...] = config_field(
        REPLICAS, "", "Replicas whose follower side is throttled.", has_effect=False
    )
    remote_storage_enable: bool = config_field(
        FLAG,
        "false",
        "Whether `tidelog tier` copies finished segments to the store of tidelog.tier.url, and"
        " local.retention.* apply; see docs/tiers.md. Kafka's own broker opens the local part.",
    )
    remote_log_copy_disable: bool = config_field(
        FLAG,
        "false",
        "Stop copying to the tier; existing copies stay readable and subject to retention.",
    )
    remote_log_delete_on_disable: bool = config_field(
        FLAG,
        "false",
        "Where remote.storage.enable is false: delete what only the tier has, the log then"
        " starts with its local part. Else it stays readable.",
    )
    local_retention_ms: int = config_field(
        int64(-2),
        "-2",
        "Local files that the tier has too go when they are older than this many ms; -2 means"
        " as long as retention.ms, -1: forever.",
        synonyms=(Synonym("log.local.retention.ms"),),
    )
    local_retention_bytes: int = config_field(
        int64(-2),
        "-2",
        "Local files that the tier has too go while local segments are larger than this many"
        " bytes without them; -2 means retention.bytes, -1 is no limit.",
        synonyms=(Synonym("log.local.retention.bytes"),),
    )
    tidelog_tier_url: str = config_field(
        STORE_URL,
        "",
        "Where the tier is: `s3://bucket/prefix`, or another store of docs/objects.md. Never"
        " credentials; those come from the environment.",
    )

    @classmethod
    def parse(
        cls, given: Mapping[str, str], *, broker: Mapping[str, str] | None = None
    ) -> tuple[Self, list[ConfigNote]]:
        """Parse the settings of a topic; return them and notes for the user.

        Args:
            given: The topic's own settings; broker names and older names are accepted.
            broker: Broker settings, which apply if the topic has no value; names that are no topic
                defaults are ignored.

        Raises:
            ConfigError: A name is unknown, a value is out of range, or two values contradict.
        """
        below, broker_notes = resolve(broker or {}, ignore_unknown=True)
        above, notes = resolve(given)
        settings = below | above
        values = {setting.key.attribute: setting.value for setting in settings.values()}
        config = cast("Callable[..., Self]", cls)(**values)
        config.ensure_consistent()
        return config, [*broker_notes, *notes, *_advice(config, settings)]

    def ensure_consistent(self) -> None:
        """Check combinations of settings; raises ConfigError if two contradict."""
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
        """Return a setting's value in Kafka's format; raises ConfigError for an unknown name."""
        key = TOPIC_CONFIG_BY_NAME.get(name)
        if key is None:
            raise ConfigError(name, None, "is not a topic setting")
        return text_of(cast("ConfigValue | None", getattr(self, key.attribute)))

    def texts(self) -> dict[str, str]:
        """Return the texts of all settings that are set, by Kafka's name, in the table's order."""
        texts = {key.name: self.text(key.name) for key in TOPIC_CONFIGS}
        return {name: text for name, text in texts.items() if text or name == "cleanup.policy"}

    @property
    def is_compacted(self) -> bool:
        """Whether the topic is compacted; it then refuses records without a key."""
        return CLEANUP_COMPACT in self.cleanup_policy

    @property
    def is_deleted_by_age_or_size(self) -> bool:
        """Whether retention.ms and retention.bytes apply."""
        return CLEANUP_DELETE in self.cleanup_policy

    @property
    def may_delete_records(self) -> bool:
        """Whether clients may delete records; an empty policy allows it."""
        return not self.is_compacted or self.is_deleted_by_age_or_size

    @property
    def segment_size_limit(self) -> int:
        """Bytes at which a segment rolls: internal.segment.bytes if set, else segment.bytes."""
        if self.internal_segment_bytes is None:
            return self.segment_bytes
        return self.internal_segment_bytes

    @property
    def roll_ms(self) -> int:
        """Maximum time span of a segment in ms.

        On a compacted topic max.compaction.lag.ms may lower it.
        """
        if self.is_compacted:
            return min(self.max_compaction_lag_ms, self.segment_ms)
        return self.segment_ms

    def compression_level(self, codec: Codec) -> int | None:
        """Return the compression level; None for a codec without levels."""
        match codec:
            case Codec.GZIP:
                return self.compression_gzip_level
            case Codec.LZ4:
                return self.compression_lz4_level
            case Codec.ZSTD:
                return self.compression_zstd_level
            case _:
                return None


TOPIC_CONFIGS: Final = keys_of(TopicConfig)

TOPIC_CONFIG_BY_NAME: Final = {key.name: key for key in TOPIC_CONFIGS}

# Names of KIP-32's limit on timestamps, one for the past and the future. Kafka split it in 3.6, and
# dropped these names in 4.0.
TWO_SIDED_LIMITS: Final = (
    "message.timestamp.difference.max.ms",
    "log.message.timestamp.difference.max.ms",
    "max.message.time.difference.ms",
)
TWO_SIDED_LIMIT_KEYS: Final = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")

_FORMATS: Final = (
    "records are written in format 2, those of old clients (`tidelog.legacy.clients`) in their own"
)
# Retired name -> the reason why the setting has no effect.
RETIRED: Final = {
    "message.format.version": _FORMATS,
    "log.message.format.version": _FORMATS,
    "message.downconversion.enable": "batches are handed out as they lie in the file",
    "log.message.downconversion.enable": "batches are handed out as they lie in the file",
    "time.index.interval": "the density of the time index follows index.interval.bytes",
}


class Setting(NamedTuple):
    """Value of one key, and the name under which it was given."""

    key: ConfigKey
    value: ConfigValue
    given: str


def _find_synonyms() -> dict[str, tuple[ConfigKey, Synonym]]:
    synonyms = {}
    for key in TOPIC_CONFIGS:
        for synonym in key.synonyms:
            # compression.type and a few others have the same name for topics and brokers.
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
    """Return the names under which broker settings are defaults of topics."""
    return _BROKER_NAMES


def resolve(
    texts: Mapping[str, str], *, ignore_unknown: bool = False
) -> tuple[dict[str, Setting], list[ConfigNote]]:
    """Parse the settings in a mapping; return them by key name, in the table's order.

    Args:
        texts: Texts by any known name.
        ignore_unknown: Whether to ignore unknown names, as in a broker's mapping.

    Returns:
        The settings, and notes for the user.

    Raises:
        ConfigError: A name is unknown or a value is out of range.
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
    """Rename settings for brokers, which accept only a topic setting's own name.

    Args:
        texts: Texts by name. A name that is neither old nor the broker's stays as it is, because a
            broker may know more settings than the table.

    Returns:
        Texts by name, and notes for the user.

    Raises:
        ConfigError: The value of an older name is out of range.
    """
    older = {name for name in texts if name in _SYNONYMS or name in TWO_SIDED_LIMITS}
    plain = {name: text for name, text in texts.items() if name not in older}
    meant = older.union(*map(key_names, older))
    settings, notes = resolve({name: text for name, text in texts.items() if name in meant})
    resolved = {name: text_of(setting.value) for name, setting in settings.items()}
    return resolved | plain, [note for note in notes if note.given in older]


def key_names(name: str) -> tuple[str, ...]:
    """Return the keys of a name: mostly one, two for KIP-32's limit, none for a retired name.

    Raises:
        ConfigError: The name is unknown.
    """
    if name in TOPIC_CONFIG_BY_NAME:
        return (name,)
    if name in _SYNONYMS:
        return (_SYNONYMS[name][0].name,)
    if name in TWO_SIDED_LIMITS:
        return TWO_SIDED_LIMIT_KEYS
    if name in RETIRED:
        return ()
    raise unknown_setting(name, "topic", _KNOWN_NAMES)


def _candidates(texts: Mapping[str, str]) -> Iterator[Setting]:
    """Iterate over all settings in a mapping; of several settings for a key, the first one wins."""
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
    """Parse a text; raises ConfigError with the name as written."""
    try:
        # Negative hours mean the same as -1 ms: no limit.
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
    if not key.has_effect and text_of(setting.value) != key.default:
        text = "kept for Kafka's sake, it changes nothing here"
        yield ConfigNote(NoteKind.NO_EFFECT, setting.given, text)


def normalize(given: Mapping[str, str]) -> tuple[dict[str, str], list[ConfigNote]]:
    """Convert a mapping to Kafka's current names and spelling, in which settings are stored.

    A stored setting therefore stays valid when an old name is no longer supported.

    Raises:
        ConfigError: A name is unknown, a value is out of range, or a text is too long.
    """
    settings, notes = resolve(given)
    for name, text in given.items():
        ensure_tellable(name, text)
    return {name: text_of(setting.value) for name, setting in settings.items()}, notes


def _advice(config: TopicConfig, settings: Mapping[str, Setting]) -> Iterator[ConfigNote]:
    """Iterate over notes about valid but harmful settings that the user has set."""
    if 0 < config.roll_ms <= config.segment_jitter_ms and "segment.jitter.ms" in settings:
        text = f"as large as the roll time ({config.roll_ms} ms), so any record may roll a segment"
        yield ConfigNote(NoteKind.ADVICE, settings["segment.jitter.ms"].given, text)
    # KAFKA-4092: only whole segments are deleted, so the limit can't be kept.
    if 0 <= config.retention_bytes < config.segment_size_limit and "retention.bytes" in settings:
        text = f"less than a segment ({config.segment_size_limit} bytes), which goes only whole"
        yield ConfigNote(NoteKind.ADVICE, settings["retention.bytes"].given, text)


DEFAULT_TOPIC_CONFIG: Final = TopicConfig()
