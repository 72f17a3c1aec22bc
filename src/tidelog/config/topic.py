"""Topic settings as typed values (`TopicConfig`), and the names that users may write for them.

The fields of `TopicConfig` define the settings: name, type, default, range, synonyms and
documentation of each setting. tools/config_docs.py generates docs/config.md from these fields.
Names, defaults and ranges of Kafka's settings were read from the `LogConfig` of a running Kafka
4.3.

`resolve` handles synonyms, retired names, spelling and ranges. Within one mapping, a setting's own
name takes precedence over its synonyms, and a finer unit takes precedence over a coarser unit, as
in Kafka. A topic's mapping takes precedence over the broker's mapping. A `ConfigNote` reports each
value that was renamed, converted or dropped.

CONTRIBUTING.md ("A setting") lists what a new setting needs. Three modules decide by a setting's
name: whether a mirror copies the setting (`jobs/mirror/places.py`), whether a standby must know the
setting because it deletes records (`standby/topic_sync.py`), and whether a job checks the setting
before the job writes to a topic (`jobs/target_check.py`).

Source: Kafka 4.3's `LogConfig`; KIP-32 and KIP-33 for the older names.
"""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Final, NamedTuple, Self

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
        given: Name of the setting as the user has written it.
        text: One line that says what tidelog does instead, or what the value causes.
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

    `parse` creates the object and validates names and ranges; the constructor doesn't validate
    them. docs/config.md describes the settings in the order of the fields.
    """

    message_timestamp_type: TimestampType = config_field(
        TIMESTAMP_TYPE,
        "CreateTime",
        "Origin of a record's timestamp: the producer (CreateTime) or the log at the append"
        " (LogAppendTime). With either value, the file keeps the producer's timestamp.",
        synonyms=(Synonym("log.message.timestamp.type"),),
    )
    message_timestamp_before_max_ms: int = config_field(
        int64(0),
        _INT64_MAX_TEXT,
        "Maximum time in ms by which a create time may be before the log's clock; an"
        " earlier record is refused. Ignored on LogAppendTime topics.",
        synonyms=(Synonym("log.message.timestamp.before.max.ms"),),
    )
    message_timestamp_after_max_ms: int = config_field(
        int64(0),
        "3600000",
        "Maximum time in ms by which a create time may be after the log's clock; a later"
        " record is refused. With tidelog.retention.clock=record, such a time would keep its"
        " segment alive. Ignored on LogAppendTime topics.",
        synonyms=(Synonym("log.message.timestamp.after.max.ms"),),
    )

    segment_bytes: int = config_field(
        int32(1_048_576),
        "1073741824",
        "Maximum size of a segment in bytes: an append that would exceed it rolls the segment"
        " first. A single append can't be larger than this size.",
        synonyms=(Synonym("log.segment.bytes"),),
    )
    internal_segment_bytes: int | None = config_field(
        int32(1),
        None,
        "If set, replaces segment.bytes; the minimum of segment.bytes does not apply. For tests"
        " only.",
    )
    segment_ms: int = config_field(
        int64(1),
        "604800000",
        "Time span in ms after which a segment is rolled. The span begins at the timestamp of the"
        " segment's first record and ends at the timestamp of a new record. If records have no"
        " timestamp, the span is measured by the wall clock.",
        synonyms=(Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS)),
    )
    segment_jitter_ms: int = config_field(
        int64(0),
        "0",
        "Maximum random time in ms by which segment.ms is reduced, so that segments"
        " don't all roll at once.",
        synonyms=(Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS)),
    )
    segment_index_bytes: int = config_field(
        int32(4),
        "10485760",
        "Size limit in bytes of a segment's offset index, and of its time index; a full index rolls"
        " the segment. The time index reaches the limit first, because its entries are 1.5 times as"
        " large as those of the offset index.",
        synonyms=(Synonym("log.index.size.max.bytes"),),
    )
    index_interval_bytes: int = config_field(
        int32(0),
        "4096",
        "Minimum number of bytes of the log between two index entries. A smaller value makes"
        " larger indexes and shorter scans.",
        synonyms=(Synonym("log.index.interval.bytes"),),
    )
    preallocate: bool = config_field(
        FLAG,
        "false",
        "No effect in tidelog, whose files grow as they are written; Kafka extends a new"
        " segment's file to its full size at once.",
        synonyms=(Synonym("log.preallocate"),),
        has_effect=False,
    )
    flush_messages: int = config_field(
        int64(1),
        _INT64_MAX_TEXT,
        "Number of unsynced records at which a log is synced to the disk.",
        synonyms=(Synonym("log.flush.interval.messages"),),
    )
    flush_ms: int = config_field(
        int64(0),
        _INT64_MAX_TEXT,
        "Maximum time in ms for which an appended record stays unsynced.",
        synonyms=(Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
    )

    cleanup_policy: tuple[str, ...] = config_field(
        word_list(CLEANUP_COMPACT, CLEANUP_DELETE),
        CLEANUP_DELETE,
        "Cleanup of old data: `delete` whole segments by size and time, `compact` to the"
        " last record of each key, both, or (empty) neither. A compacted topic refuses"
        " null keys.",
        synonyms=(Synonym("log.cleanup.policy"),),
    )
    retention_ms: int = config_field(
        int64(-1),
        "604800000",
        "Maximum age of a segment in ms: an older segment is deleted. -1: never."
        " tidelog.retention.clock selects the time from which the age counts.",
        synonyms=(
            Synonym("log.retention.ms"),
            Synonym("log.retention.minutes", MINUTE_MS),
            Synonym("log.retention.hours", HOUR_MS),
        ),
    )
    retention_bytes: int = config_field(
        int64(None),
        "-1",
        "Number of bytes that retention keeps: the oldest segment is deleted if the other segments"
        " have at least this many bytes. A negative value means no limit.",
        synonyms=(Synonym("log.retention.bytes"),),
    )
    file_delete_delay_ms: int = config_field(
        int64(0),
        "60000",
        "Time in ms for which the renamed files of a deleted segment are kept for"
        " readers that have them open.",
        synonyms=(Synonym("log.segment.delete.delay.ms"),),
    )

    delete_retention_ms: int = config_field(
        int64(0),
        "86400000",
        "Minimum time in ms for which a tombstone is kept, counted from the first compaction that"
        " read the tombstone. After this minimum, a compaction that removes the tombstone is due"
        " within a tenth of delete.retention.ms, even if nothing more is appended. With"
        " tidelog.compaction.scheduler=generational, it is due within 1.1 times delete.retention.ms"
        " after the minimum.",
        synonyms=(Synonym("log.cleaner.delete.retention.ms"),),
    )
    min_cleanable_dirty_ratio: float = config_field(
        RATIO,
        "0.5",
        "Minimum share of a log's bytes that must be uncompacted before the log is compacted.",
        synonyms=(Synonym("log.cleaner.min.cleanable.ratio"),),
    )
    min_compaction_lag_ms: int = config_field(
        int64(0),
        "0",
        "Minimum age in ms of records that are compacted. The age counts from the earlier of the"
        " record's timestamp and its append time. If tidelog.retention.clock is `record`, it counts"
        " from the timestamp. Must not exceed max.compaction.lag.ms.",
        synonyms=(Synonym("log.cleaner.min.compaction.lag.ms"),),
    )
    max_compaction_lag_ms: int = config_field(
        int64(1),
        _INT64_MAX_TEXT,
        "Maximum time in ms that a record waits for compaction. On compacted topics, a segment"
        " rolls after this time even if segment.ms is longer; a broker also rolls a segment to"
        " which nothing is appended.",
        synonyms=(Synonym("log.cleaner.max.compaction.lag.ms"),),
    )
    tidelog_compaction_min_dirty_bytes: int = config_field(
        int64(1, None, -1),
        "-1",
        "A log with at least this many uncompacted bytes is compacted, even if"
        " min.cleanable.dirty.ratio is not reached; -1: only min.cleanable.dirty.ratio counts.",
    )
    tidelog_compaction_strategy: CompactionStrategy = config_field(
        COMPACTION_STRATEGY,
        "offset",
        "Property that decides which record of a key is kept. `offset`: the highest offset, as in"
        " Kafka; `timestamp`: the highest record timestamp; `header`: the highest version in a"
        " header. Among equal values, the record with the highest offset is kept.",
    )
    tidelog_compaction_strategy_header: str = config_field(
        TEXT,
        "",
        "Name of the version header for tidelog.compaction.strategy=header. The header's value is a"
        " big-endian int64 (8 bytes). A record without this header counts as older than all records"
        " with this header.",
    )
    tidelog_compaction_scheduler: CompactionScheduler = config_field(
        COMPACTION_SCHEDULER,
        "brute-force",
        "Selects the segments that a compaction rewrites. `brute-force` rewrites all segments, as"
        " in Kafka, when min.cleanable.dirty.ratio or tidelog.compaction.min.dirty.bytes is"
        " reached. `generational` rewrites the segments with the most garbage per rewritten byte,"
        " when tidelog.compaction.space.factor is reached; it writes far less than `brute-force`,"
        " but reads more.",
    )
    tidelog_compaction_space_factor: float = config_field(
        SPACE_FACTOR,
        "2.0",
        "With tidelog.compaction.scheduler=generational: maximum size of a log,"
        " including its active segment, as a multiple of the size of its live records."
        " The log is compacted before it grows larger.",
    )
    tidelog_cleaner_hash: KeyHash = config_field(
        KEY_HASH,
        "siphash",
        "128-bit hash of keys in a compaction: `siphash` with a new random secret for each"
        " compaction, or `md5`.",
    )
    tidelog_cleaner_verify_keys: bool = config_field(
        FLAG,
        "false",
        "`true`: keys are compared byte by byte before a record is dropped, so that two keys with"
        " the same hash are never mistaken for one key. The keys are stored in half of the offset"
        " map's memory.",
    )

    max_message_bytes: int = config_field(
        int32(0),
        "1048588",
        "Maximum size of a batch in bytes, as stored: compressed, with its header.",
        synonyms=(Synonym("message.max.bytes"),),
    )
    compression_type: CompressionType = config_field(
        COMPRESSION,
        "producer",
        "Codec of stored batches; `producer` keeps the producer's codec.",
        synonyms=(Synonym("compression.type"),),
    )
    compression_gzip_level: int = config_field(
        int32(1, 9, extra=-1),
        "-1",
        "gzip level if the log compresses batches itself; -1 is zlib's default.",
        synonyms=(Synonym("compression.gzip.level"),),
    )
    compression_lz4_level: int = config_field(
        int32(1, 17),
        "9",
        "lz4 level if the log compresses batches itself; 9 selects the fast compressor, all other"
        " levels the slow compressor.",
        synonyms=(Synonym("compression.lz4.level"),),
    )
    compression_zstd_level: int = config_field(
        int32(-131_072, 22),
        "3",
        "zstd level if the log compresses batches itself.",
        synonyms=(Synonym("compression.zstd.level"),),
    )

    tidelog_append_time_enable: bool = config_field(
        FLAG,
        "true",
        "Whether append times are stored (BASE.appendtime). Records that are appended while this"
        " setting is false have no append time; lookups by append time report the number of records"
        " without an append time.",
    )
    tidelog_append_time_granularity_ms: int = config_field(
        int64(1),
        "1",
        "Step of the append clock in ms; append times are rounded down to a multiple of the step."
        " Larger steps make smaller files. Lookups and ranges by append time begin up to one step"
        " early, so that they miss no record.",
    )
    tidelog_retention_clock: RetentionClock = config_field(
        RETENTION_CLOCK,
        "record-capped",
        "Time from which retention.ms counts. `record`: the largest timestamp, Kafka's rule;"
        " `append`: the largest append time; `record-capped`: the largest of the records'"
        " timestamps, each limited to the record's append time, so that a timestamp in the future"
        " does not keep a segment forever. If the append times of a segment are not known, the age"
        " counts from the modification time of its file, or from the time at which tidelog first"
        " saw the segment, whichever is earlier.",
    )
    tidelog_lookup_clock: ClockName = config_field(
        LOOKUP_CLOCK,
        "record",
        "Clock by which a broker looks up records (ListOffsets, offsetsForTimes): `record`, as in"
        " Kafka, or `append`. These lookups also return times of this clock.",
    )
    tidelog_expose_append_time: bool = config_field(
        FLAG,
        "false",
        "Whether Fetch responses contain each record's append time, as the header"
        " `tidelog.append.time`: ms since the epoch, 8 bytes, big-endian. Batches are rebuilt to"
        " add this header, which costs time. Records in formats 0 and 1 have no headers, so they"
        " are sent unchanged.",
    )
    tidelog_max_clock_jump_ms: int = config_field(
        int64(1),
        "3600000",
        "Maximum jump of the wall clock into the future, in ms. After a larger jump, appends are"
        " refused until an operator accepts the clock's time, because append times never decrease.",
    )

    min_insync_replicas: int = config_field(
        int32(1),
        "1",
        "Minimum number of replicas that must have a record before it is acknowledged; tidelog has"
        " one replica.",
        synonyms=(Synonym("min.insync.replicas"),),
        has_effect=False,
    )
    unclean_leader_election_enable: bool = config_field(
        FLAG,
        "false",
        "Whether a replica that lags may become leader; tidelog has one replica.",
        synonyms=(Synonym("unclean.leader.election.enable"),),
        has_effect=False,
    )
    leader_replication_throttled_replicas: tuple[str, ...] = config_field(
        REPLICAS, "", "Replicas whose replication is throttled on the leader.", has_effect=False
    )
    follower_replication_throttled_replicas: tuple[str, ...] = config_field(
        REPLICAS, "", "Replicas whose replication is throttled on the follower.", has_effect=False
    )
    remote_storage_enable: bool = config_field(
        FLAG,
        "false",
        "If true, `tidelog tier` copies finished segments to the store of tidelog.tier.url, and"
        " local.retention.ms and local.retention.bytes apply; see docs/tiers.md. Apache Kafka can"
        " open the local part of the log.",
    )
    remote_log_copy_disable: bool = config_field(
        FLAG,
        "false",
        "`true`: no further segments are copied to the tier; existing copies stay readable and"
        " subject to retention.",
    )
    remote_log_delete_on_disable: bool = config_field(
        FLAG,
        "false",
        "Has an effect only if remote.storage.enable is false. `true`: records that are only in the"
        " tier are deleted, so that the log starts with its first local record. `false`: these"
        " records stay readable.",
    )
    local_retention_ms: int = config_field(
        int64(-2),
        "-2",
        "Local files that are also in the tier are deleted when they are older than this"
        " many ms; -2: the value of retention.ms; -1: never.",
        synonyms=(Synonym("log.local.retention.ms"),),
    )
    local_retention_bytes: int = config_field(
        int64(-2),
        "-2",
        "The local files of the oldest segment are deleted if the segment is also in the tier and"
        " the other local segments have at least this many bytes; -2: the value of"
        " retention.bytes; -1: no limit.",
        synonyms=(Synonym("log.local.retention.bytes"),),
    )
    tidelog_tier_url: str = config_field(
        STORE_URL,
        "",
        "URL of the tier: `s3://bucket/prefix`, or another store of docs/objects.md. The URL must"
        " not contain credentials; credentials come from the environment.",
    )

    @classmethod
    def parse(
        cls, given: Mapping[str, str], *, broker: Mapping[str, str] | None = None
    ) -> tuple[Self, list[ConfigNote]]:
        """Parse the settings of a topic; return them and notes for the user.

        Args:
            given: The topic's own settings; broker names and older names are accepted.
            broker: Broker settings, which apply if the topic has no value. Broker settings without
                a corresponding topic setting are ignored.

        Raises:
            ConfigError: A name is unknown, a value is invalid, or two values contradict each other.
        """
        below, broker_notes = resolve(broker or {}, ignore_unknown=True)
        above, notes = resolve(given)
        settings = below | above
        values = {setting.key.attribute: setting.value for setting in settings.values()}
        make: Callable[..., Self] = cls
        config = make(**values)
        config.ensure_consistent()
        return config, [*broker_notes, *notes, *_advice(config, settings)]

    def ensure_consistent(self) -> None:
        """Check combinations of settings; raises ConfigError if two contradict each other."""
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
                "is required if tidelog.compaction.strategy is header, and not allowed otherwise",
            )

    def text(self, name: str) -> str:
        """Return a setting's value in Kafka's format; raises ConfigError for an unknown name."""
        key = TOPIC_CONFIG_BY_NAME.get(name)
        if key is None:
            raise ConfigError(name, None, "unknown topic setting")
        value: ConfigValue | None = getattr(self, key.attribute)
        return text_of(value)

    def texts(self) -> dict[str, str]:
        """Return the texts of all settings that have a value, by name, in the order of the fields.

        Only the text of cleanup.policy can be empty.
        """
        texts = {key.name: self.text(key.name) for key in TOPIC_CONFIGS}
        return {name: text for name, text in texts.items() if text or name == "cleanup.policy"}

    @property
    def is_compacted(self) -> bool:
        """Whether the topic is compacted. A compacted topic refuses records without a key."""
        return CLEANUP_COMPACT in self.cleanup_policy

    @property
    def is_deleted_by_age_or_size(self) -> bool:
        """Whether retention.ms and retention.bytes apply to the topic."""
        return CLEANUP_DELETE in self.cleanup_policy

    @property
    def may_delete_records(self) -> bool:
        """Whether clients may delete records; true also for an empty cleanup.policy."""
        return not self.is_compacted or self.is_deleted_by_age_or_size

    @property
    def segment_size_limit(self) -> int:
        """Maximum size of a segment in bytes: internal.segment.bytes if set, else segment.bytes."""
        if self.internal_segment_bytes is None:
            return self.segment_bytes
        return self.internal_segment_bytes

    @property
    def roll_ms(self) -> int:
        """Time in ms after which a segment is rolled.

        On a compacted topic, segments roll after max.compaction.lag.ms if that time is shorter.
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

# Names of KIP-32's limit on timestamps. One limit applied to timestamps before and after the log's
# clock. Kafka 3.6 introduced a setting for each of the two directions, and Kafka 4.0 removed the
# names below.
TWO_SIDED_LIMITS: Final = (
    "message.timestamp.difference.max.ms",
    "log.message.timestamp.difference.max.ms",
    "max.message.time.difference.ms",
)
TWO_SIDED_LIMIT_KEYS: Final = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")

_FORMATS: Final = (
    "records are stored in format 2; with `tidelog.legacy.clients`, records of old clients keep"
    " their format"
)
_DOWN: Final = (
    "batches are sent as they are stored; with `tidelog.legacy.clients`, they are converted for old"
    " clients that don't support their format"
)
# Maps a retired name to the reason why the setting has no effect.
RETIRED: Final = {
    "message.format.version": _FORMATS,
    "log.message.format.version": _FORMATS,
    "message.downconversion.enable": _DOWN,
    "log.message.downconversion.enable": _DOWN,
    "time.index.interval": "the density of the time index follows index.interval.bytes",
}


class Setting(NamedTuple):
    """Value of one setting, and the name under which the value was given."""

    key: ConfigKey
    value: ConfigValue
    given: str


def _find_synonyms() -> dict[str, tuple[ConfigKey, Synonym]]:
    synonyms = {}
    for key in TOPIC_CONFIGS:
        for synonym in key.synonyms:
            # compression.type and a few other settings have the same name for topics and brokers.
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
    """Return the names of the broker settings that are defaults of topic settings."""
    return _BROKER_NAMES


def resolve(
    texts: Mapping[str, str], *, ignore_unknown: bool = False
) -> tuple[dict[str, Setting], list[ConfigNote]]:
    """Parse the settings in a mapping; return them by current name, in the order of the fields.

    Args:
        texts: Texts by any known name.
        ignore_unknown: Whether to ignore unknown names, as in a broker's mapping.

    Returns:
        The settings, and notes for the user.

    Raises:
        ConfigError: A name is unknown or a value is invalid.
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
    """Rename topic settings for brokers, which accept only current names of topic settings.

    Args:
        texts: Texts by name. Older names and names of broker settings are replaced. All other names
            stay unchanged, because a broker may know more settings than this release.

    Returns:
        Texts by name, and notes for the user.

    Raises:
        ConfigError: The value of an older name is invalid. The value of a current name is checked
            only if an older name of the same setting is given too.
    """
    older = {name for name in texts if name in _SYNONYMS or name in TWO_SIDED_LIMITS}
    plain = {name: text for name, text in texts.items() if name not in older}
    names = older.union(*map(key_names, older))
    settings, notes = resolve({name: text for name, text in texts.items() if name in names})
    resolved = {name: text_of(setting.value) for name, setting in settings.items()}
    return resolved | plain, [note for note in notes if note.given in older]


def key_names(name: str) -> tuple[str, ...]:
    """Return the current names of settings that a name stands for.

    Most names stand for one setting. `message.timestamp.difference.max.ms` stands for two settings:
    a limit for timestamps before the log's clock, and a limit for timestamps after it. A retired
    name stands for no setting.

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
    """Yield all settings in a mapping, in order of precedence.

    A setting may be yielded several times, under several names. The caller uses the value that is
    yielded first.
    """
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
    """Parse the text of a setting; raises ConfigError with the name as written."""
    try:
        # A negative number of hours or minutes means the same as -1 ms: no limit.
        scaled = text if factor == 1 else str(max(parse_integer(text) * factor, -1))
        return key.kind.parse(scaled)
    except ValueError:
        unit = "" if factor == 1 else f" (times {factor} it is {key.name})"
        raise ConfigError(name, text, f"must be {key.kind.allowed}{unit}") from None


def _notes(setting: Setting, winner: Setting) -> Iterator[ConfigNote]:
    key = setting.key
    if setting is not winner:
        of = f" for {key.name}" if setting.given in TWO_SIDED_LIMITS else ""
        text = f"ignored{of}, because {winner.given} is set, too"
        yield ConfigNote(NoteKind.SHADOWED, setting.given, text)
    elif setting.given != key.name:
        text = f"used as {key.name}={text_of(setting.value)}"
        yield ConfigNote(NoteKind.RENAMED, setting.given, text)
    if not key.has_effect and text_of(setting.value) != key.default:
        text = "accepted for compatibility with Kafka; has no effect"
        yield ConfigNote(NoteKind.NO_EFFECT, setting.given, text)


def normalize(texts: Mapping[str, str]) -> tuple[dict[str, str], list[ConfigNote]]:
    """Convert settings to Kafka's current names and spelling, for storage.

    Stored settings stay valid even if a later release no longer supports an old name.

    Raises:
        ConfigError: A name is unknown, a value is invalid, or a text is too long.
    """
    settings, notes = resolve(texts)
    for name, text in texts.items():
        ensure_tellable(name, text)
    return {name: text_of(setting.value) for name, setting in settings.items()}, notes


def _advice(config: TopicConfig, settings: Mapping[str, Setting]) -> Iterator[ConfigNote]:
    """Yield notes about valid but harmful settings that the user has set."""
    if 0 < config.roll_ms <= config.segment_jitter_ms and "segment.jitter.ms" in settings:
        text = (
            f"at least as large as the roll time ({config.roll_ms} ms), so any record may roll a"
            " segment"
        )
        yield ConfigNote(NoteKind.ADVICE, settings["segment.jitter.ms"].given, text)
    # KAFKA-4092: retention deletes only whole segments, so it can't keep this limit.
    if 0 <= config.retention_bytes < config.segment_size_limit and "retention.bytes" in settings:
        text = (
            f"smaller than a segment ({config.segment_size_limit} bytes); only whole segments are"
            " deleted"
        )
        yield ConfigNote(NoteKind.ADVICE, settings["retention.bytes"].given, text)


DEFAULT_TOPIC_CONFIG: Final = TopicConfig()
