"""Table of topic settings: name, type, default, range, synonyms and documentation of each.

tools/config_docs.py generates docs/config.md from this table, and a test in tests/tidy compares the
two. Names, defaults and ranges are Kafka 4.3's, read from its `LogConfig` at run time.
"""

from typing import Final

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
    ConfigKey,
    Synonym,
    ValueKind,
    whole_number,
    word_list,
)
from tidelog.types import HOUR_MS, MINUTE_MS

_INT64_MAX_TEXT: Final = "9223372036854775807"

CLEANUP_COMPACT: Final = "compact"
CLEANUP_DELETE: Final = "delete"


def _int(low: int, high: int | None = None, extra: int | None = None) -> ValueKind:
    return whole_number("int", low, high, extra)


def _long(low: int | None) -> ValueKind:
    return whole_number("long", low)


_TIME: Final = (
    ConfigKey(
        name="message.timestamp.type",
        kind=TIMESTAMP_TYPE,
        default="CreateTime",
        synonyms=(Synonym("log.message.timestamp.type"),),
        doc="Whose time a record shows: the producer's (CreateTime) or the log's at the append"
        " (LogAppendTime). The producer's own time stays in the file either way.",
    ),
    ConfigKey(
        name="message.timestamp.before.max.ms",
        kind=_long(0),
        default=_INT64_MAX_TEXT,
        synonyms=(Synonym("log.message.timestamp.before.max.ms"),),
        doc="How far a create time may lie behind the log's clock, in ms; a record further behind"
        " is refused. Not looked at on LogAppendTime topics.",
    ),
    ConfigKey(
        name="message.timestamp.after.max.ms",
        kind=_long(0),
        default="3600000",
        synonyms=(Synonym("log.message.timestamp.after.max.ms"),),
        doc="How far a create time may lie ahead of the log's clock, in ms; a record further ahead"
        " is refused, since a time in the future keeps its segment alive. Not looked at on"
        " LogAppendTime topics.",
    ),
)

_SEGMENTS: Final = (
    ConfigKey(
        name="segment.bytes",
        kind=_int(1_048_576),
        default="1073741824",
        synonyms=(Synonym("log.segment.bytes"),),
        doc="Size in bytes at which a segment is rolled; also the largest single append.",
    ),
    ConfigKey(
        name="internal.segment.bytes",
        kind=_int(1),
        default=None,
        doc="Takes the place of segment.bytes without its lower limit. For tests only.",
    ),
    ConfigKey(
        name="segment.ms",
        kind=_long(1),
        default="604800000",
        synonyms=(Synonym("log.roll.ms"), Synonym("log.roll.hours", HOUR_MS)),
        doc="Span of record time in ms after which a segment is rolled, from its first record's"
        " timestamp; by the wall clock where records have none.",
    ),
    ConfigKey(
        name="segment.jitter.ms",
        kind=_long(0),
        default="0",
        synonyms=(Synonym("log.roll.jitter.ms"), Synonym("log.roll.jitter.hours", HOUR_MS)),
        doc="Largest random time in ms taken off segment.ms, so that not all roll at once.",
    ),
    ConfigKey(
        name="segment.index.bytes",
        kind=_int(4),
        default="10485760",
        synonyms=(Synonym("log.index.size.max.bytes"),),
        doc="Size limit in bytes of a segment's offset index, and of its time index; a full one"
        " rolls the segment. Time entries are 1.5 times as large, so that index is full first.",
    ),
    ConfigKey(
        name="index.interval.bytes",
        kind=_int(0),
        default="4096",
        synonyms=(Synonym("log.index.interval.bytes"),),
        doc="Bytes of log between two index entries. Smaller: larger indexes, shorter scans.",
    ),
    ConfigKey(
        name="preallocate",
        kind=FLAG,
        default="false",
        synonyms=(Synonym("log.preallocate"),),
        doc="Kafka extends a new segment's file to its full size at once. Files written here grow.",
        has_effect=False,
    ),
    ConfigKey(
        name="flush.messages",
        kind=_long(1),
        default=_INT64_MAX_TEXT,
        synonyms=(Synonym("log.flush.interval.messages"),),
        doc="How many records may be appended before the log is synced to the disk.",
    ),
    ConfigKey(
        name="flush.ms",
        kind=_long(0),
        default=_INT64_MAX_TEXT,
        synonyms=(Synonym("log.flush.interval.ms"), Synonym("log.flush.scheduler.interval.ms")),
        doc="Longest time in ms that an appended record stays unsynced.",
    ),
)

_RETENTION: Final = (
    ConfigKey(
        name="cleanup.policy",
        kind=word_list(CLEANUP_COMPACT, CLEANUP_DELETE),
        default=CLEANUP_DELETE,
        synonyms=(Synonym("log.cleanup.policy"),),
        doc="How old data goes: `delete` whole segments by size and time, `compact` to the last"
        " record of each key, both, or (empty) neither. A compacted topic refuses null keys.",
    ),
    ConfigKey(
        name="retention.ms",
        kind=_long(-1),
        default="604800000",
        synonyms=(
            Synonym("log.retention.ms"),
            Synonym("log.retention.minutes", MINUTE_MS),
            Synonym("log.retention.hours", HOUR_MS),
        ),
        doc="A segment goes when its largest timestamp is older than this many ms; -1 is for ever."
        " tidelog.retention.clock says how timestamps count.",
    ),
    ConfigKey(
        name="retention.bytes",
        kind=_long(None),
        default="-1",
        synonyms=(Synonym("log.retention.bytes"),),
        doc="The oldest segments go while the partition is larger than this many bytes without"
        " them; negative is no limit.",
    ),
    ConfigKey(
        name="file.delete.delay.ms",
        kind=_long(0),
        default="60000",
        synonyms=(Synonym("log.segment.delete.delay.ms"),),
        doc="How long in ms a deleted segment's files stay, renamed, for those who read them.",
    ),
)

_COMPACTION: Final = (
    ConfigKey(
        name="delete.retention.ms",
        kind=_long(0),
        default="86400000",
        synonyms=(Synonym("log.cleaner.delete.retention.ms"),),
        doc="How long in ms a tombstone stays after the first compaction that met it, also on a log"
        " that takes no more records; it goes with a run at most a tenth of that later (by"
        " generations at most 1.1 times that).",
    ),
    ConfigKey(
        name="min.cleanable.dirty.ratio",
        kind=RATIO,
        default="0.5",
        synonyms=(Synonym("log.cleaner.min.cleanable.ratio"),),
        doc="Part of the log that must be uncompacted before a compaction is worth it.",
    ),
    ConfigKey(
        name="min.compaction.lag.ms",
        kind=_long(0),
        default="0",
        synonyms=(Synonym("log.cleaner.min.compaction.lag.ms"),),
        doc="How long in ms a record stays out of compaction, counted from its timestamp, but not"
        " from later than its append time unless tidelog.retention.clock is `record`. May not be"
        " over max.compaction.lag.ms.",
    ),
    ConfigKey(
        name="max.compaction.lag.ms",
        kind=_long(1),
        default=_INT64_MAX_TEXT,
        synonyms=(Synonym("log.cleaner.max.compaction.lag.ms"),),
        doc="How long in ms a record may wait for compaction; on compacted topics it lowers"
        " segment.ms. A broker also rolls an idle segment for it.",
    ),
    ConfigKey(
        name="tidelog.compaction.min.dirty.bytes",
        kind=whole_number("long", 1, None, -1),
        default="-1",
        synonyms=(Synonym("tidelog.compaction.min.dirty.bytes"),),
        doc="Uncompacted bytes from which on a compaction is worth it whatever"
        " min.cleanable.dirty.ratio says; -1 for none.",
    ),
    ConfigKey(
        name="tidelog.compaction.strategy",
        kind=COMPACTION_STRATEGY,
        default="offset",
        synonyms=(Synonym("tidelog.compaction.strategy"),),
        doc="Which record of a key stays: the one with the highest `offset`, as in Kafka, the"
        " highest record `timestamp`, or the highest version in a `header`; of equal ones the one"
        " with the highest offset.",
    ),
    ConfigKey(
        name="tidelog.compaction.strategy.header",
        kind=TEXT,
        default="",
        synonyms=(Synonym("tidelog.compaction.strategy.header"),),
        doc="Name of the version header for tidelog.compaction.strategy=header: 8 bytes, a"
        " big-endian int64. A record without one is older than all that have one.",
    ),
    ConfigKey(
        name="tidelog.compaction.scheduler",
        kind=COMPACTION_SCHEDULER,
        default="brute-force",
        synonyms=(Synonym("tidelog.compaction.scheduler"),),
        doc="What a compaction rewrites: `brute-force` everything, as Kafka, when"
        " min.cleanable.dirty.ratio or tidelog.compaction.min.dirty.bytes asks for it;"
        " `generational` the segments with the most garbage for the bytes that move, when"
        " tidelog.compaction.space.factor is reached: far less is written, more is read.",
    ),
    ConfigKey(
        name="tidelog.compaction.space.factor",
        kind=SPACE_FACTOR,
        default="2.0",
        synonyms=(Synonym("tidelog.compaction.space.factor"),),
        doc="With tidelog.compaction.scheduler=generational: how many times its live size a log may"
        " take, its active segment included, before it is compacted.",
    ),
    ConfigKey(
        name="tidelog.cleaner.hash",
        kind=KEY_HASH,
        default="siphash",
        synonyms=(Synonym("tidelog.cleaner.hash"),),
        doc="How a compaction hashes keys to 128 bits: `siphash` with a secret that is drawn for"
        " each run, or `md5`.",
    ),
    ConfigKey(
        name="tidelog.cleaner.verify.keys",
        kind=FLAG,
        default="false",
        synonyms=(Synonym("tidelog.cleaner.verify.keys"),),
        doc="Compare the keys themselves before a record is dropped, so that not even two keys of"
        " equal hashes are taken for one; the keys then take their room from the offset map's.",
    ),
)

_MESSAGES: Final = (
    ConfigKey(
        name="max.message.bytes",
        kind=_int(0),
        default="1048588",
        synonyms=(Synonym("message.max.bytes"),),
        doc="Largest batch in bytes as it lies in the file, header and compression included.",
    ),
    ConfigKey(
        name="compression.type",
        kind=COMPRESSION,
        default="producer",
        synonyms=(Synonym("compression.type"),),
        doc="Codec of the batches in the file; `producer` keeps what was sent.",
    ),
    ConfigKey(
        name="compression.gzip.level",
        kind=_int(1, 9, extra=-1),
        default="-1",
        synonyms=(Synonym("compression.gzip.level"),),
        doc="Level for gzip, where the log itself compresses; -1 is zlib's default.",
    ),
    ConfigKey(
        name="compression.lz4.level",
        kind=_int(1, 17),
        default="9",
        synonyms=(Synonym("compression.lz4.level"),),
        doc="Level for lz4, where the log itself compresses; 9 is the fast compressor.",
    ),
    ConfigKey(
        name="compression.zstd.level",
        kind=_int(-131_072, 22),
        default="3",
        synonyms=(Synonym("compression.zstd.level"),),
        doc="Level for zstd, where the log itself compresses.",
    ),
)

_TIDELOG: Final = (
    ConfigKey(
        name="tidelog.append.time.enable",
        kind=FLAG,
        default="true",
        doc="Whether each record's append time is kept (BASE.appendtime). Without it every"
        " question on the append clock answers `unknown` for what is appended meanwhile.",
    ),
    ConfigKey(
        name="tidelog.append.time.granularity.ms",
        kind=_long(1),
        default="1",
        doc="Step of the append clock in ms; append times are rounded down to it. Larger steps"
        " make smaller files. Look-ups and ranges by append time begin up to one step early, so"
        " that they miss no record.",
    ),
    ConfigKey(
        name="tidelog.retention.clock",
        kind=RETENTION_CLOCK,
        default="record-capped",
        doc="Which time retention.ms counts from. `record`: the largest timestamp, Kafka's rule;"
        " `append`: the largest append time; `record-capped`: the largest timestamp, each counted"
        " at most as its record's append time, so that one in the future keeps nothing for ever."
        " Where an append time is not known, the segment's modification time or the time at which"
        " it was first seen stands in, the earlier of the two.",
    ),
    ConfigKey(
        name="tidelog.lookup.clock",
        kind=LOOKUP_CLOCK,
        default="record",
        doc="Which of a record's two times a broker's lookups (ListOffsets, offsetsForTimes) go by"
        " and answer with: `record`, as Kafka, or `append`.",
    ),
    ConfigKey(
        name="tidelog.expose.append.time",
        kind=FLAG,
        default="false",
        doc="Whether a broker adds each record's append time to what it answers to fetches, as the"
        " header `tidelog.append.time`: ms since the epoch, 8 bytes, big-endian. Batches are made"
        " anew for it, which costs time; those of formats 0 and 1 know no headers and stay.",
    ),
    ConfigKey(
        name="tidelog.max.clock.jump.ms",
        kind=_long(1),
        default="3600000",
        doc="Largest jump ahead of the wall clock in ms that the append clock follows by itself;"
        " beyond it appends wait for an explicit accept, since append time never runs back.",
    ),
)

_KEPT_FOR_KAFKA: Final = (
    ConfigKey(
        name="min.insync.replicas",
        kind=_int(1),
        default="1",
        synonyms=(Synonym("min.insync.replicas"),),
        doc="Replicas that must have a record before it is acknowledged; here there is one.",
        has_effect=False,
    ),
    ConfigKey(
        name="unclean.leader.election.enable",
        kind=FLAG,
        default="false",
        synonyms=(Synonym("unclean.leader.election.enable"),),
        doc="Whether a replica that lags may become leader; here there is one.",
        has_effect=False,
    ),
    ConfigKey(
        name="leader.replication.throttled.replicas",
        kind=REPLICAS,
        default="",
        doc="Replicas whose leader side is throttled.",
        has_effect=False,
    ),
    ConfigKey(
        name="follower.replication.throttled.replicas",
        kind=REPLICAS,
        default="",
        doc="Replicas whose follower side is throttled.",
        has_effect=False,
    ),
    ConfigKey(
        name="remote.storage.enable",
        kind=FLAG,
        default="false",
        doc="Whether `tidelog tier` copies finished segments to the store of tidelog.tier.url, and"
        " local.retention.* apply; see docs/tiers.md. Kafka's own broker opens the local part.",
    ),
    ConfigKey(
        name="remote.log.copy.disable",
        kind=FLAG,
        default="false",
        doc="Stop copying to the tier; what is there is read and retained on.",
    ),
    ConfigKey(
        name="remote.log.delete.on.disable",
        kind=FLAG,
        default="false",
        doc="Where remote.storage.enable is false: delete what only the tier has, the log then"
        " starts with its local part. Else it stays readable.",
    ),
    ConfigKey(
        name="local.retention.ms",
        kind=_long(-2),
        default="-2",
        synonyms=(Synonym("log.local.retention.ms"),),
        doc="Local files that the tier has too go when they are older than this many ms; -2 means"
        " as long as retention.ms, -1 is for ever.",
    ),
    ConfigKey(
        name="local.retention.bytes",
        kind=_long(-2),
        default="-2",
        synonyms=(Synonym("log.local.retention.bytes"),),
        doc="Local files that the tier has too go while local segments are larger than this many"
        " bytes without them; -2 means retention.bytes, -1 is no limit.",
    ),
    ConfigKey(
        name="tidelog.tier.url",
        kind=STORE_URL,
        default="",
        doc="Where the tier is: `s3://bucket/prefix`, or another store of docs/objects.md. Never"
        " credentials; those come from the environment.",
    ),
)

TOPIC_CONFIGS: Final[tuple[ConfigKey, ...]] = (
    *_TIME,
    *_SEGMENTS,
    *_RETENTION,
    *_COMPACTION,
    *_MESSAGES,
    *_TIDELOG,
    *_KEPT_FOR_KAFKA,
)

TOPIC_CONFIG_BY_NAME: Final = {key.name: key for key in TOPIC_CONFIGS}
assert len(TOPIC_CONFIG_BY_NAME) == len(TOPIC_CONFIGS)

# KIP-32 had one limit for both directions; Kafka split it in 3.6 and dropped it in 4.0.
TWO_SIDED_LIMITS: Final = (
    "message.timestamp.difference.max.ms",
    "log.message.timestamp.difference.max.ms",
    "max.message.time.difference.ms",
)
TWO_SIDED_LIMIT_KEYS: Final = ("message.timestamp.before.max.ms", "message.timestamp.after.max.ms")

_FORMATS: Final = (
    "records are written in format 2, those of old clients (`tidelog.legacy.clients`) in their own"
)
# Names that stand for nothing any more, and what to know instead.
RETIRED: Final = {
    "message.format.version": _FORMATS,
    "log.message.format.version": _FORMATS,
    "message.downconversion.enable": "batches are handed out as they lie in the file",
    "log.message.downconversion.enable": "batches are handed out as they lie in the file",
    "time.index.interval": "the density of the time index follows index.interval.bytes",
}
