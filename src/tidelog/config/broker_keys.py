"""Table of broker settings: name, type, default, range and documentation of each.

Covers the directory, listeners and security, groups, transactions, share groups, the cleaner and
the tier. Names, defaults and ranges are Kafka 4.3's where Kafka has the setting; exceptions are in
docs/differences.md. Broker settings that give topics their defaults (`log.retention.hours`) are
synonyms in `topic_keys`.

Source: Kafka 4.3's `KafkaConfig`, `SocketServerConfigs`, `BrokerSecurityConfigs`, `SaslConfigs`,
`SslConfigs`, `GroupCoordinatorConfig`, `TransactionStateManagerConfig`, `TransactionLogConfig`,
`ShareGroupConfig`, `ShareCoordinatorConfig`; KIP-932.
"""

from typing import Final

from tidelog.config.values import (
    DURABILITY,
    FLAG,
    LOAD_FACTOR,
    MIGRATION_POLICY,
    PASSWORD,
    RATE,
    TEXT,
    TEXTS,
    ConfigKey,
    ValueKind,
    address_limits,
    whole_number,
    word,
    word_list,
    words_once,
)
from tidelog.types import INT32_MAX

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


# What sasl.enabled.mechanisms may name.
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")


# By which tokens may be signed; with a secret, or not at all, they never may.
TOKEN_ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512"),
    *("PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512"),
)


# Kafka's authorizer, whose rules ours are.
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def _listener_key(name: str, kind: ValueKind, default: str, doc: str) -> ConfigKey:
    return ConfigKey(name=name, kind=kind, default=default, doc=doc)


_LISTENERS: Final = (
    _listener_key(
        "listeners",
        TEXTS,
        "PLAINTEXT://127.0.0.1:9092",
        "Where it listens: NAME://HOST:PORT, comma separated.",
    ),
    _listener_key(
        "advertised.listeners",
        TEXTS,
        "",
        "What clients of each listener are told to connect to, by the same names; as listeners"
        " where empty.",
    ),
    _listener_key(
        "listener.security.protocol.map",
        TEXT,
        ",".join(f"{name}:{name}" for name in PROTOCOLS),
        f"What each listener speaks, NAME:PROTOCOL, comma separated; {', '.join(PROTOCOLS)}.",
    ),
)


_SASL: Final = (
    _listener_key(
        "sasl.enabled.mechanisms",
        word_list(*MECHANISMS),
        "",
        "How clients of SASL listeners may log in; such a listener needs one or more.",
    ),
    _listener_key(
        "tidelog.sasl.plain.users.file",
        TEXT,
        "",
        "Users of PLAIN: a file of lines NAME=PASSWORD, the password hashed or not; read again when"
        " it changes.",
    ),
    _listener_key(
        "connections.max.reauth.ms",
        whole_number("long", 0),
        "0",
        "A client that has logged in has to do so again after so long. 0 for never.",
    ),
    _listener_key(
        "connection.failed.authentication.delay.ms",
        whole_number("int", 0),
        "100",
        "How long the answer to a failed log-in is held back.",
    ),
)


_TOKENS: Final = (
    _listener_key(
        "sasl.oauthbearer.jwks.endpoint.url",
        TEXT,
        "",
        "Keys of those who make tokens: file:///PATH of a JSON Web Key Set, read again when it"
        " changes, or https://HOST/...",
    ),
    _listener_key(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        whole_number("long", 1),
        "3600000",
        "How often keys are fetched from an address; for a key that is not known also between.",
    ),
    _listener_key(
        "sasl.oauthbearer.expected.audience",
        TEXTS,
        "",
        "Whom tokens are for: one of these, comma separated; any where empty.",
    ),
    _listener_key(
        "sasl.oauthbearer.expected.issuer", TEXT, "", "Who makes tokens; anybody where empty."
    ),
    _listener_key(
        "sasl.oauthbearer.clock.skew.seconds",
        whole_number("int", 0),
        "30",
        "How far apart the clocks of the broker and of those who make tokens may be.",
    ),
    _listener_key(
        "sasl.oauthbearer.sub.claim.name", TEXT, "sub", "Which claim of a token names the user."
    ),
    _listener_key(
        "tidelog.sasl.oauthbearer.algorithms",
        word_list(*TOKEN_ALGORITHMS),
        ",".join(TOKEN_ALGORITHMS),
        "By which algorithms tokens may be signed.",
    ),
)


_TLS: Final = (
    _listener_key(
        "ssl.keystore.location",
        TEXT,
        "",
        "The broker's key and certificates in one PEM file; read again when it changes.",
    ),
    _listener_key("ssl.keystore.type", word("PEM"), "PEM", "Form of that file."),
    _listener_key(
        "ssl.key.password", PASSWORD, "", "What its key is encrypted with; nothing where empty."
    ),
    _listener_key(
        "ssl.truststore.location",
        TEXT,
        "",
        "Certificates, as PEM, of those who vouch for clients; read again when it changes.",
    ),
    _listener_key("ssl.truststore.type", word("PEM"), "PEM", "Form of that file."),
    _listener_key(
        "ssl.client.auth",
        word("none", "requested", "required"),
        "none",
        "Whether clients of SSL listeners show a certificate.",
    ),
    _listener_key(
        "ssl.enabled.protocols",
        word_list("TLSv1.2", "TLSv1.3"),
        "TLSv1.2,TLSv1.3",
        "Versions of TLS that are spoken.",
    ),
    _listener_key(
        "ssl.principal.mapping.rules",
        TEXT,
        "DEFAULT",
        "What a certificate's owner is called: RULE:pattern/replacement/[LU] or DEFAULT, comma"
        " separated; the first that is about a subject counts.",
    ),
)


_RIGHTS: Final = (
    _listener_key(
        "authorizer.class.name",
        word("", STANDARD_AUTHORIZER),
        "",
        "With Kafka's name for it, ACLs decide who may do what; without, everybody may everything.",
    ),
    _listener_key(
        "super.users", TEXT, "", "Principals that may do everything: User:NAME;User:NAME."
    ),
    _listener_key(
        "allow.everyone.if.no.acl.found",
        FLAG,
        "false",
        "What holds for a resource that no ACL is about.",
    ),
)


DOOR_CONFIGS: Final[tuple[ConfigKey, ...]] = (
    *_LISTENERS,
    *_SASL,
    *_TOKENS,
    *_TLS,
    *_RIGHTS,
)


# Settings that lie between two others, which are named with `min.` and `max.` in them.
BOUNDED: Final = (
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "assignment.interval.ms",
    "record.lock.duration.ms",
    "delivery.count.limit",
    "partition.max.record.locks",
)


_LEAST: Final = "The least that may be."


_MOST: Final = "The most that may be."


def _share_int(low: int, high: int | None = None) -> ValueKind:
    return whole_number("int", low, high)


def _share_key(name: str, kind: ValueKind, default: str, doc: str) -> ConfigKey:
    return ConfigKey(name=name, kind=kind, default=default, doc=doc)


SHARE_CONFIGS: Final = (
    _share_key(
        "group.share.session.timeout.ms",
        _share_int(1),
        "45000",
        "A member of a share group that is silent for so long is given up.",
    ),
    _share_key("group.share.min.session.timeout.ms", _share_int(1), "45000", _LEAST),
    _share_key("group.share.max.session.timeout.ms", _share_int(1), "60000", _MOST),
    _share_key(
        "group.share.heartbeat.interval.ms",
        _share_int(1),
        "5000",
        "How often members of a share group are told to say that they are there.",
    ),
    _share_key("group.share.min.heartbeat.interval.ms", _share_int(1), "5000", _LEAST),
    _share_key("group.share.max.heartbeat.interval.ms", _share_int(1), "15000", _MOST),
    _share_key(
        "group.share.assignment.interval.ms",
        _share_int(0),
        "1000",
        "A share group gets a new assignment at most so often; 0 for at once.",
    ),
    _share_key("group.share.min.assignment.interval.ms", _share_int(0), "0", _LEAST),
    _share_key("group.share.max.assignment.interval.ms", _share_int(0), "15000", _MOST),
    _share_key(
        "group.share.record.lock.duration.ms",
        _share_int(1000, 3_600_000),
        "30000",
        "For so long a record is the member's that it was given to.",
    ),
    _share_key(
        "group.share.min.record.lock.duration.ms", _share_int(1000, 30_000), "15000", _LEAST
    ),
    _share_key(
        "group.share.max.record.lock.duration.ms", _share_int(30_000, 3_600_000), "60000", _MOST
    ),
    _share_key(
        "group.share.delivery.count.limit",
        _share_int(2, 10),
        "5",
        "After so many deliveries a record is given to nobody any more.",
    ),
    _share_key("group.share.min.delivery.count.limit", _share_int(2, 5), "2", _LEAST),
    _share_key("group.share.max.delivery.count.limit", _share_int(5, 25), "10", _MOST),
    _share_key(
        "group.share.partition.max.record.locks",
        _share_int(100, 10_000),
        "2000",
        "Records of a partition between the first that a share group is not done with and the last"
        " that it was given.",
    ),
    _share_key("group.share.min.partition.max.record.locks", _share_int(100, 2000), "100", _LEAST),
    _share_key(
        "group.share.max.partition.max.record.locks", _share_int(2000, 10_000), "4000", _MOST
    ),
    _share_key("group.share.max.size", _share_int(1, 1000), "200", "Members of a share group."),
    _share_key(
        "group.share.max.share.sessions", _share_int(1), "2000", "Share sessions of the broker."
    ),
    _share_key(
        "share.coordinator.state.topic.num.partitions",
        _share_int(1),
        "50",
        "Partitions of __share_group_state.",
    ),
    _share_key(
        "share.coordinator.state.topic.segment.bytes",
        _share_int(1),
        "104857600",
        "segment.bytes of that topic.",
    ),
    _share_key(
        "share.coordinator.snapshot.update.records.per.snapshot",
        _share_int(0, 500),
        "500",
        "After so many changes of a share partition all that is known of it is written again.",
    ),
)


def _int(low: int, high: int | None = None, extra: int | None = None) -> ValueKind:
    return whole_number("int", low, high, extra)


def _long(low: int, extra: int | None = None) -> ValueKind:
    return whole_number("long", low, None, extra)


def _key(name: str, kind: ValueKind, default: str, doc: str) -> ConfigKey:
    return ConfigKey(name=name, kind=kind, default=default, doc=doc)


_PLACE: Final = (
    _key("node.id", _int(0), "0", "The broker's number in answers."),
    _key("log.dirs", TEXTS, "", "The directory of topics, one; --data wins."),
    _key("log.dir", TEXTS, "", "The same, where log.dirs is not given."),
    ConfigKey(
        name="broker.rack",
        kind=TEXT,
        default=None,
        doc="Where the broker stands, as clients are told it.",
    ),
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
        "socket.send.buffer.bytes",
        _int(1, extra=-1),
        "102400",
        "What the system holds of answers for each connection, which bounds what is on its way to a"
        " far client. -1 for as much as the system finds fit, as on the loopback where nothing is"
        " set.",
    ),
    _key(
        "queued.max.request.bytes",
        _long(1, extra=-1),
        "268435456",
        "Bytes of requests and answers in flight over all connections; no more is read above it."
        " -1 for no bound.",
    ),
    _key("max.connections", _int(1), str(INT32_MAX), "Connections; more are closed at once."),
    _key("max.connections.per.ip", _int(0), str(INT32_MAX), "Connections from one address."),
    _key(
        "max.connections.per.ip.overrides",
        address_limits(),
        "",
        "Other numbers for some addresses: ADDRESS:COUNT,ADDRESS:COUNT.",
    ),
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


_CONSUMER_GROUPS: Final = (
    _key(
        "group.consumer.session.timeout.ms",
        _int(1),
        "45000",
        "A member of the consumer protocol that is silent for so long is given up.",
    ),
    _key("group.consumer.min.session.timeout.ms", _int(1), "45000", "The least that may be."),
    _key("group.consumer.max.session.timeout.ms", _int(1), "60000", "The most that may be."),
    _key(
        "group.consumer.heartbeat.interval.ms",
        _int(1),
        "5000",
        "How often members of the consumer protocol are told to say that they are there.",
    ),
    _key("group.consumer.min.heartbeat.interval.ms", _int(1), "5000", "The least that may be."),
    _key("group.consumer.max.heartbeat.interval.ms", _int(1), "15000", "The most that may be."),
    _key(
        "group.consumer.assignment.interval.ms",
        _int(0),
        "1000",
        "A group gets a new assignment at most so often; 0 for at once.",
    ),
    _key("group.consumer.min.assignment.interval.ms", _int(0), "0", "The least that may be."),
    _key("group.consumer.max.assignment.interval.ms", _int(0), "15000", "The most that may be."),
    _key(
        "group.consumer.max.size", _int(1), str(INT32_MAX), "Members of a consumer protocol group."
    ),
    _key(
        "group.consumer.assignors",
        words_once("uniform", "range"),
        "uniform,range",
        "Assignors of the broker; the first one where members ask for none.",
    ),
    _key(
        "group.consumer.migration.policy",
        MIGRATION_POLICY,
        "bidirectional",
        "Which way a group may change its protocol while it is used.",
    ),
    _key(
        "group.consumer.regex.refresh.interval.ms",
        _int(10_000),
        "600000",
        "Expressions that groups subscribed to are looked up again after so long at the latest.",
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
    *_CONSUMER_GROUPS,
    _key("offsets.topic.num.partitions", _int(1), "50", "Partitions of __consumer_offsets."),
    _key(
        "offsets.topic.replication.factor",
        whole_number("short", 1),
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


_TRANSACTIONS: Final = (
    _key("transaction.max.timeout.ms", _int(1), "900000", "Longest time-out of a transaction."),
    _key(
        "transactional.id.expiration.ms",
        _int(1),
        "604800000",
        "A transactional id is forgotten when nobody has used it for so long.",
    ),
    _key(
        "transaction.abort.timed.out.transaction.cleanup.interval.ms",
        _int(1),
        "10000",
        "How often transactions are looked at for their time-out.",
    ),
    _key(
        "transaction.remove.expired.transaction.cleanup.interval.ms",
        _int(1),
        "3600000",
        "How often transactional ids are looked at for their expiration.",
    ),
    _key(
        "transaction.state.log.num.partitions", _int(1), "50", "Partitions of __transaction_state."
    ),
    _key(
        "transaction.state.log.segment.bytes", _int(1), "104857600", "segment.bytes of that topic."
    ),
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


_CLEANER: Final = (
    _key("log.cleaner.enable", FLAG, "true", "Whether compacted topics are compacted."),
    _key(
        "log.cleaner.threads",
        _int(0),
        "1",
        "How many partitions are compacted at a time, each in a process of its own.",
    ),
    _key(
        "log.cleaner.dedupe.buffer.size",
        _long(1_048_576),
        "134217728",
        "Memory of the offset maps of all threads together, in bytes; at least 1 MiB each.",
    ),
    _key(
        "log.cleaner.io.buffer.load.factor",
        LOAD_FACTOR,
        "0.9",
        "Part of an offset map's slots that is used before a compaction goes on in another pass.",
    ),
    _key(
        "log.cleaner.io.max.bytes.per.second",
        RATE,
        "1.7976931348623157E308",
        "What compactions read and write at most, all threads together.",
    ),
    _key(
        "log.cleaner.backoff.ms",
        _long(0),
        "15000",
        "How long to wait where nothing is to be compacted; also before a partition whose"
        " compaction has failed is tried again, twice as long each time, up to an hour.",
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
    _key(
        "tidelog.busy.poll.us",
        _int(0, 1000),
        "200",
        "How long the loop looks for the next request before it sleeps, where small ones come"
        " close upon each other: they are answered sooner, for more CPU. 0 for never.",
    ),
)


BROKER_CONFIGS: Final[tuple[ConfigKey, ...]] = (
    *_PLACE,
    *DOOR_CONFIGS,
    *_TOPICS,
    *_CONNECTIONS,
    *_FETCH,
    *_GROUPS,
    *SHARE_CONFIGS,
    *_TRANSACTIONS,
    *_LOGS,
    *_CLEANER,
    *_OURS,
)
