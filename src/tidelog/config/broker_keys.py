"""The one table of broker settings: names, types, defaults, ranges, documentation.

Names, defaults and ranges are Kafka 4.3's where Kafka has the setting. Settings of topics that a
broker gives defaults for (`log.retention.hours` and the like) are in `topic_keys`, as synonyms.

Source: Kafka 4.3's `KafkaConfig`, `GroupCoordinatorConfig`, `SocketServerConfigs`.
"""

from typing import Final

from tidelog.config.keys import ConfigKey
from tidelog.config.values import DURABILITY, FLAG, TEXT, ValueKind, whole_number
from tidelog.types import INT32_MAX


def _int(low: int, high: int | None = None, extra: int | None = None) -> ValueKind:
    return whole_number("int", low, high, extra)


def _long(low: int, extra: int | None = None) -> ValueKind:
    return whole_number("long", low, None, extra)


def _key(name: str, kind: ValueKind, default: str, doc: str) -> ConfigKey:
    return ConfigKey(name=name, kind=kind, default=default, doc=doc)


_PLACE: Final = (
    _key("node.id", _int(0), "0", "The broker's number in answers."),
    _key(
        "listeners", TEXT, "PLAINTEXT://127.0.0.1:9092", "Where it listens: PLAINTEXT://HOST:PORT."
    ),
    _key(
        "advertised.listeners",
        TEXT,
        "",
        "What clients are told to connect to: PLAINTEXT://HOST:PORT; as listeners where empty.",
    ),
    _key("log.dirs", TEXT, "", "The directory of topics, one; --data wins."),
)

_TOPICS: Final = (
    _key("num.partitions", _int(1), "1", "Partitions of a topic that is created without a number."),
    _key(
        "default.replication.factor",
        _int(1, 1),
        "1",
        "Replicas of a new topic; one broker holds one.",
    ),
    _key(
        "auto.create.topics.enable",
        FLAG,
        "true",
        "Whether asking for a topic that is not there creates it, where the client allows it.",
    ),
    _key("delete.topic.enable", FLAG, "true", "Whether topics can be deleted."),
)

_CONNECTIONS: Final = (
    _key(
        "socket.request.max.bytes",
        _int(1),
        "104857600",
        "Largest request; a longer one closes its connection before anything is allocated.",
    ),
    _key(
        "queued.max.request.bytes",
        _long(1, extra=-1),
        "268435456",
        "Bytes of requests and answers in flight over all connections; no more is read above it."
        " -1 for no bound.",
    ),
    _key("max.connections", _int(1), str(INT32_MAX), "Connections; more are closed at once."),
    _key("max.connections.per.ip", _int(1), str(INT32_MAX), "Connections from one address."),
    _key(
        "connections.max.idle.ms",
        _long(1, extra=-1),
        "600000",
        "A connection that was silent for so long is closed. -1 for never.",
    ),
)

_FETCH: Final = (
    _key("fetch.max.bytes", _int(1024), "57671680", "Largest answer to a fetch, in bytes."),
    _key(
        "max.incremental.fetch.session.cache.slots",
        _int(0),
        "1000",
        "Fetch sessions kept.",
    ),
    _key(
        "min.incremental.fetch.session.eviction.ms",
        _long(0),
        "120000",
        "A fetch session unused for so long makes way for a new one.",
    ),
)

_GROUPS: Final = (
    _key("group.min.session.timeout.ms", _int(1), "6000", "Shortest session of a group's member."),
    _key("group.max.session.timeout.ms", _int(1), "1800000", "Longest session of a member."),
    _key(
        "group.initial.rebalance.delay.ms",
        _int(0),
        "3000",
        "How long an empty group waits for more members before its first rebalance.",
    ),
    _key("group.max.size", _int(1), str(INT32_MAX), "Members of a group."),
    _key("offsets.topic.num.partitions", _int(1), "50", "Partitions of __consumer_offsets."),
    _key(
        "offsets.topic.replication.factor",
        _int(1),
        "3",
        "Replicas of __consumer_offsets; one broker holds one, whatever is written here.",
    ),
    _key("offsets.topic.segment.bytes", _int(1), "104857600", "segment.bytes of that topic."),
    _key(
        "offsets.topic.compression.codec",
        _int(0, 4),
        "0",
        "Codec of what is written there: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
    ),
    _key(
        "offsets.retention.minutes",
        _int(1),
        "10080",
        "Offsets of a group without members are forgotten after so long.",
    ),
    _key(
        "offsets.retention.check.interval.ms",
        _long(1),
        "600000",
        "How often offsets are looked at for their retention.",
    ),
    _key("offset.metadata.max.bytes", _int(0), "4096", "Text kept with a committed offset."),
)

_LOGS: Final = (
    _key(
        "log.retention.check.interval.ms",
        _long(1),
        "300000",
        "How often segments are looked at for their retention.",
    ),
    _key("log.initial.task.delay.ms", _long(0), "30000", "When background work first looks."),
    _key(
        "log.flush.offset.checkpoint.interval.ms",
        _int(0),
        "60000",
        "How often recovery points are written.",
    ),
    _key(
        "producer.id.expiration.ms",
        _int(1),
        "86400000",
        "A producer's state is forgotten when it was silent for so long.",
    ),
    _key(
        "producer.id.expiration.check.interval.ms",
        _int(1),
        "600000",
        "How often producers are looked at for it.",
    ),
)

_OURS: Final = (
    _key(
        "tidelog.durability",
        DURABILITY,
        "page-cache",
        "What an acknowledgement with acks=all means: `page-cache`, as Kafka's on one node, or"
        " `fsync`, a group commit of records and append times.",
    ),
    _key(
        "tidelog.legacy.clients",
        FLAG,
        "false",
        "Whether Produce v0-v2, Fetch v0-v3 and ListOffsets v0 are served too.",
    ),
    _key(
        "tidelog.metrics.listen",
        TEXT,
        "",
        "Where /metrics, /healthz and /readyz are served: HOST:PORT; nowhere where empty.",
    ),
)

BROKER_CONFIGS: Final[tuple[ConfigKey, ...]] = (
    *_PLACE,
    *_TOPICS,
    *_CONNECTIONS,
    *_FETCH,
    *_GROUPS,
    *_LOGS,
    *_OURS,
)

# Settings of Kafka's that one process without a controller has no use for: taken with a note.
WITHOUT_EFFECT: Final = frozenset(
    {
        "background.threads",
        "broker.heartbeat.interval.ms",
        "broker.id",
        "broker.session.timeout.ms",
        "controller.listener.names",
        "controller.quorum.bootstrap.servers",
        "controller.quorum.voters",
        "group.coordinator.append.linger.ms",
        "group.coordinator.threads",
        "inter.broker.listener.name",
        "listener.security.protocol.map",
        "num.io.threads",
        "num.network.threads",
        "num.recovery.threads.per.data.dir",
        "num.replica.fetchers",
        "offsets.commit.timeout.ms",
        "offsets.load.buffer.size",
        "process.roles",
        "queued.max.requests",
        "share.coordinator.state.topic.min.isr",
        "share.coordinator.state.topic.replication.factor",
        "socket.listen.backlog.size",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "transaction.state.log.min.isr",
        "transaction.state.log.num.partitions",
        "transaction.state.log.replication.factor",
        "unstable.api.versions.enable",
    }
)
