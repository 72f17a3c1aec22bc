"""Broker settings as typed values, and the changes that a running broker accepts.

The fields of `BrokerConfig` define the settings: name, type, default, range and documentation of
each setting. If Kafka has a setting, its name, default and range are those of Kafka 4.3;
docs/differences.md lists the exceptions. A broker setting that is the default of a topic setting
(`log.retention.hours`) is called a synonym of the topic setting; `config/topic.py` defines the
synonyms.

Precedence, highest first: a value set for this broker at run time, a value set for all brokers at
run time, the value at start, the default. If a topic setting has several broker settings for its
default, only the setting with the smallest unit (`log.retention.ms`) can be changed at run time.
The settings with larger units (`log.retention.hours`) keep their values from the start, as in
Kafka.

Source: Kafka 4.3's `KafkaConfig`, `DynamicBrokerConfig`, `SocketServerConfigs`,
`BrokerSecurityConfigs`, `SaslConfigs`, `SslConfigs`, `GroupCoordinatorConfig`,
`TransactionStateManagerConfig`, `TransactionLogConfig`, `ShareGroupConfig`,
`ShareCoordinatorConfig`; KIP-226, KIP-932.
"""

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from typing import Final, Self

from tidelog.config.topic import (
    TOPIC_CONFIG_BY_NAME,
    TOPIC_CONFIGS,
    ConfigNote,
    NoteKind,
    TopicConfig,
    broker_names,
)
from tidelog.config.unused_keys import (
    CHANGEABLE,
    CONTROL_PLANE,
    CONTROLLER_LISTENERS,
    FORMER,
    NOT_SERVED,
    WITHOUT_EFFECT,
)
from tidelog.config.values import (
    DURABILITY,
    FLAG,
    LOAD_FACTOR,
    MIGRATION_POLICY,
    PASSWORD,
    RATE,
    TEXT,
    TEXTS,
    ConfigValue,
    Durability,
    MigrationPolicy,
    address_limits,
    config_field,
    int32,
    int64,
    key_value,
    keys_of,
    text_of,
    unknown_setting,
    whole_number,
    word,
    word_list,
    words_once,
)
from tidelog.errors import ConfigError, ConfigErrors
from tidelog.lazy_dataclass import dataclass
from tidelog.types import INT32_MAX

# Minimum size of a cleaner's offset map in bytes, as in Kafka. With a smaller map, a compaction
# would read a log many times.
CLEANER_MAP_BYTES_MIN: Final = 1 << 20

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

# Valid values of sasl.enabled.mechanisms.
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

# Valid signature algorithms of tokens. Algorithms with a shared secret, and `none`, are never
# allowed.
TOKEN_ALGORITHMS: Final = (
    *("RS256", "RS384", "RS512"),
    *("PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512"),
)

# Name of Kafka's authorizer, whose rules the broker implements.
STANDARD_AUTHORIZER: Final = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"

# Group settings that the broker bounds. The bounds are broker settings whose names contain `min.`
# or `max.`. The names below omit the protocol (`consumer.`, `share.`). The last three settings
# exist only for share groups.
BOUNDED: Final = (
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "assignment.interval.ms",
    "record.lock.duration.ms",
    "delivery.count.limit",
    "partition.max.record.locks",
)


def _minimum_of(setting: str) -> str:
    return f"Minimum value of the group setting `{setting}`."


def _maximum_of(setting: str) -> str:
    return f"Maximum value of the group setting `{setting}`."


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """All broker settings that have an effect in tidelog; docs/serve.md describes each setting.

    A field has the setting's name with underscores.

    `parse` creates the object and validates names and ranges; the constructor doesn't validate
    them. docs/serve.md describes the settings in the order of the fields.

    Attributes:
        topic_defaults: Default settings of topics, under the broker's names.
        without_effect: Texts of the given settings that have no effect in tidelog. Passwords are
            replaced by empty texts.
        explicit_names: Names of the broker settings that were given, even with a value that equals
            the default. Topic defaults and settings without effect are left out.
    """

    node_id: int = config_field(int32(0), "0", "The broker's id in responses.")
    log_dirs: str = config_field(
        TEXTS, "", "Directory of topics; only one is supported. --data overrides it."
    )
    log_dir: str = config_field(TEXTS, "", "Directory of topics if log.dirs is not set.")
    broker_rack: str | None = config_field(TEXT, None, "The broker's rack, as clients see it.")

    listeners: str = config_field(
        TEXTS, "PLAINTEXT://127.0.0.1:9092", "Listeners: NAME://HOST:PORT, comma separated."
    )
    advertised_listeners: str = config_field(
        TEXTS,
        "",
        "Addresses that clients of each listener connect to, with the listeners' names. If empty,"
        " clients connect to the addresses in `listeners`.",
    )
    listener_security_protocol_map: str = config_field(
        TEXT,
        ",".join(f"{name}:{name}" for name in PROTOCOLS),
        "Security protocol of each listener: NAME:PROTOCOL, comma separated. The protocols are"
        f" {', '.join(PROTOCOLS)}.",
    )

    sasl_enabled_mechanisms: tuple[str, ...] = config_field(
        word_list(*MECHANISMS),
        "",
        "SASL mechanisms that clients may use; required for a SASL listener.",
    )
    tidelog_sasl_plain_users_file: str = config_field(
        TEXT,
        "",
        "File of the users for PLAIN, with lines NAME=PASSWORD; a password may be hashed. The"
        " broker reads the file again when it changes.",
    )
    connections_max_reauth_ms: int = config_field(
        int64(0), "0", "Time in ms after which a client must authenticate again; 0: never."
    )
    connection_failed_authentication_delay_ms: int = config_field(
        int32(0), "100", "Delay in ms of the response to a failed authentication."
    )

    sasl_oauthbearer_jwks_endpoint_url: str = config_field(
        TEXT,
        "",
        "URL of the JSON Web Key Set with the public keys of the token issuers: file:///PATH, which"
        " is read again when the file changes, or https://HOST/...",
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = config_field(
        int64(1),
        "3600000",
        "Time in ms between two fetches of the keys from a URL. If a token names an unknown key,"
        " the broker fetches the keys earlier, at most once in 10 s.",
    )
    sasl_oauthbearer_expected_audience: str = config_field(
        TEXTS, "", "Accepted audiences of tokens, comma separated; empty: any."
    )
    sasl_oauthbearer_expected_issuer: str = config_field(
        TEXT, "", "Required issuer of tokens; empty: any."
    )
    sasl_oauthbearer_clock_skew_seconds: int = config_field(
        int32(0),
        "30",
        "Maximum clock difference in seconds between the broker and token issuers.",
    )
    sasl_oauthbearer_sub_claim_name: str = config_field(
        TEXT, "sub", "Claim of a token that contains the user's name."
    )
    tidelog_sasl_oauthbearer_algorithms: tuple[str, ...] = config_field(
        word_list(*TOKEN_ALGORITHMS),
        ",".join(TOKEN_ALGORITHMS),
        "Accepted signature algorithms of tokens.",
    )

    ssl_keystore_location: str = config_field(
        TEXT, "", "The broker's key and certificates in one PEM file; read again when it changes."
    )
    ssl_keystore_type: str = config_field(word("PEM"), "PEM", "Format of ssl.keystore.location.")
    ssl_key_password: str = config_field(
        PASSWORD, "", "Password of the private key; empty for an unencrypted key."
    )
    ssl_truststore_location: str = config_field(
        TEXT,
        "",
        "CA certificates (PEM) for client certificates; read again when the file changes.",
    )
    ssl_truststore_type: str = config_field(
        word("PEM"), "PEM", "Format of ssl.truststore.location."
    )
    ssl_client_auth: str = config_field(
        word("none", "requested", "required"),
        "none",
        "Whether clients of SSL listeners must present a certificate.",
    )
    ssl_enabled_protocols: tuple[str, ...] = config_field(
        word_list("TLSv1.2", "TLSv1.3"), "TLSv1.2,TLSv1.3", "Enabled TLS versions."
    )
    ssl_principal_mapping_rules: str = config_field(
        TEXT,
        "DEFAULT",
        "Mapping of certificate subjects to user names: RULE:pattern/replacement/[LU] or"
        " DEFAULT, comma separated; the first rule that matches a subject applies.",
    )

    authorizer_class_name: str = config_field(
        word("", STANDARD_AUTHORIZER),
        "",
        "Class name of Kafka's authorizer, which enables ACLs; empty: every client may do"
        " everything.",
    )
    super_users: str = config_field(
        TEXT, "", "Principals that may do everything: User:NAME;User:NAME."
    )
    allow_everyone_if_no_acl_found: bool = config_field(
        FLAG, "false", "Whether everyone may use a resource for which no ACL exists."
    )

    num_partitions: int = config_field(
        int32(1), "1", "Default number of partitions of a new topic."
    )
    default_replication_factor: int = config_field(
        int32(1, 1), "1", "Number of replicas of a new topic; must be 1."
    )
    auto_create_topics_enable: bool = config_field(
        FLAG,
        "true",
        "Whether a Metadata request for an unknown topic creates the topic, if the client allows"
        " this.",
    )
    delete_topic_enable: bool = config_field(FLAG, "true", "Whether topics can be deleted.")

    socket_request_max_bytes: int = config_field(
        int32(1),
        "104857600",
        "Maximum size of a request in bytes; the connection of a larger request is closed"
        " before memory is allocated for the request.",
    )
    socket_send_buffer_bytes: int = config_field(
        int32(1, extra=-1),
        "102400",
        "Size in bytes of a connection's socket send buffer, which limits the data in flight to a"
        " distant client. -1: the operating system chooses the size. If this setting is not given,"
        " the operating system also chooses the size for loopback connections.",
    )
    queued_max_request_bytes: int = config_field(
        int64(1, extra=-1),
        "268435456",
        "Maximum bytes of requests and responses in flight, over all connections; above this limit,"
        " the broker reads no further requests. -1: no limit.",
    )
    max_connections: int = config_field(
        int32(1),
        str(INT32_MAX),
        "Maximum number of connections; additional connections are closed at once.",
    )
    max_connections_per_ip: int = config_field(
        int32(0), str(INT32_MAX), "Maximum number of connections from one address."
    )
    max_connections_per_ip_overrides: tuple[str, ...] = config_field(
        address_limits(),
        "",
        "Maximum number of connections from each of these addresses: ADDRESS:COUNT,ADDRESS:COUNT.",
    )
    connections_max_idle_ms: int = config_field(
        int64(1, extra=-1),
        "600000",
        "A connection that is idle for this time in ms is closed. -1: never.",
    )

    fetch_max_bytes: int = config_field(
        int32(1024), "57671680", "Maximum size of a Fetch response in bytes."
    )
    max_incremental_fetch_session_cache_slots: int = config_field(
        int32(0), "1000", "Maximum number of fetch sessions."
    )
    min_incremental_fetch_session_eviction_ms: int = config_field(
        int64(0),
        "120000",
        "A fetch session that is unused for this time in ms can be replaced by a new one.",
    )

    group_min_session_timeout_ms: int = config_field(
        int32(1), "6000", "Minimum session timeout in ms of a member of the classic protocol."
    )
    group_max_session_timeout_ms: int = config_field(
        int32(1), "1800000", "Maximum session timeout in ms of a member of the classic protocol."
    )
    group_initial_rebalance_delay_ms: int = config_field(
        int32(0),
        "3000",
        "Time in ms for which an empty classic group waits for more members before its first"
        " rebalance.",
    )
    group_max_size: int = config_field(
        int32(1), str(INT32_MAX), "Maximum number of members of a classic group."
    )

    group_consumer_session_timeout_ms: int = config_field(
        int32(1),
        "45000",
        "A member of the consumer protocol without a heartbeat for this time in ms is removed.",
    )
    group_consumer_min_session_timeout_ms: int = config_field(
        int32(1), "45000", _minimum_of("consumer.session.timeout.ms")
    )
    group_consumer_max_session_timeout_ms: int = config_field(
        int32(1), "60000", _maximum_of("consumer.session.timeout.ms")
    )
    group_consumer_heartbeat_interval_ms: int = config_field(
        int32(1),
        "5000",
        "Time in ms between heartbeats of a member of the consumer protocol.",
    )
    group_consumer_min_heartbeat_interval_ms: int = config_field(
        int32(1), "5000", _minimum_of("consumer.heartbeat.interval.ms")
    )
    group_consumer_max_heartbeat_interval_ms: int = config_field(
        int32(1), "15000", _maximum_of("consumer.heartbeat.interval.ms")
    )
    group_consumer_assignment_interval_ms: int = config_field(
        int32(0), "1000", "Minimum time in ms between two assignments of a consumer group; 0: none."
    )
    group_consumer_min_assignment_interval_ms: int = config_field(
        int32(0), "0", _minimum_of("consumer.assignment.interval.ms")
    )
    group_consumer_max_assignment_interval_ms: int = config_field(
        int32(0), "15000", _maximum_of("consumer.assignment.interval.ms")
    )
    group_consumer_max_size: int = config_field(
        int32(1), str(INT32_MAX), "Maximum number of members of a consumer protocol group."
    )
    group_consumer_assignors: tuple[str, ...] = config_field(
        words_once("uniform", "range"),
        "uniform,range",
        "Server-side assignors; the first assignor is used if members choose none.",
    )
    group_consumer_migration_policy: MigrationPolicy = config_field(
        MIGRATION_POLICY,
        "bidirectional",
        "Allowed changes of a group with members between the classic protocol and the consumer"
        " protocol.",
    )
    group_consumer_regex_refresh_interval_ms: int = config_field(
        int32(10_000),
        "600000",
        "Maximum time in ms until new topics are matched against groups' regular expressions.",
    )

    offsets_topic_num_partitions: int = config_field(
        int32(1), "50", "Number of partitions of __consumer_offsets."
    )
    offsets_topic_replication_factor: int = config_field(
        whole_number("short", 1),
        "3",
        "Number of replicas of __consumer_offsets; always 1, whatever the value is.",
    )
    offsets_topic_segment_bytes: int = config_field(
        int32(1), "104857600", "segment.bytes of __consumer_offsets."
    )
    offsets_topic_compression_codec: int = config_field(
        int32(0, 4),
        "0",
        "Compression codec of __consumer_offsets: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd.",
    )
    offsets_retention_minutes: int = config_field(
        int32(1),
        "10080",
        "Time in minutes after which a committed offset expires. It counts from the time when the"
        " group became empty. For a group that never had members, and for a topic to which no"
        " member subscribes, it counts from the commit.",
    )
    offsets_retention_check_interval_ms: int = config_field(
        int64(1), "600000", "Time in ms between two searches for expired committed offsets."
    )
    offset_metadata_max_bytes: int = config_field(
        int32(0), "4096", "Maximum length of the metadata of a committed offset, in characters."
    )

    group_share_session_timeout_ms: int = config_field(
        int32(1),
        "45000",
        "A member of a share group without a heartbeat for this time in ms is removed.",
    )
    group_share_min_session_timeout_ms: int = config_field(
        int32(1), "45000", _minimum_of("share.session.timeout.ms")
    )
    group_share_max_session_timeout_ms: int = config_field(
        int32(1), "60000", _maximum_of("share.session.timeout.ms")
    )
    group_share_heartbeat_interval_ms: int = config_field(
        int32(1), "5000", "Time in ms between heartbeats of a member of a share group."
    )
    group_share_min_heartbeat_interval_ms: int = config_field(
        int32(1), "5000", _minimum_of("share.heartbeat.interval.ms")
    )
    group_share_max_heartbeat_interval_ms: int = config_field(
        int32(1), "15000", _maximum_of("share.heartbeat.interval.ms")
    )
    group_share_assignment_interval_ms: int = config_field(
        int32(0), "1000", "Minimum time in ms between two assignments of a share group; 0: none."
    )
    group_share_min_assignment_interval_ms: int = config_field(
        int32(0), "0", _minimum_of("share.assignment.interval.ms")
    )
    group_share_max_assignment_interval_ms: int = config_field(
        int32(0), "15000", _maximum_of("share.assignment.interval.ms")
    )
    group_share_record_lock_duration_ms: int = config_field(
        int32(1000, 3_600_000),
        "30000",
        "Time in ms for which a member holds a record's acquisition lock.",
    )
    group_share_min_record_lock_duration_ms: int = config_field(
        int32(1000, 30_000), "15000", _minimum_of("share.record.lock.duration.ms")
    )
    group_share_max_record_lock_duration_ms: int = config_field(
        int32(30_000, 3_600_000), "60000", _maximum_of("share.record.lock.duration.ms")
    )
    group_share_delivery_count_limit: int = config_field(
        int32(2, 10),
        "5",
        "Maximum number of deliveries of a record, after which no member gets it.",
    )
    group_share_min_delivery_count_limit: int = config_field(
        int32(2, 5), "2", _minimum_of("share.delivery.count.limit")
    )
    group_share_max_delivery_count_limit: int = config_field(
        int32(5, 25), "10", _maximum_of("share.delivery.count.limit")
    )
    group_share_partition_max_record_locks: int = config_field(
        int32(100, 10_000),
        "2000",
        "Maximum number of in-flight records of a partition in a share group: from the"
        " first unacknowledged record to the last delivered record.",
    )
    group_share_min_partition_max_record_locks: int = config_field(
        int32(100, 2000), "100", _minimum_of("share.partition.max.record.locks")
    )
    group_share_max_partition_max_record_locks: int = config_field(
        int32(2000, 10_000), "4000", _maximum_of("share.partition.max.record.locks")
    )
    group_share_max_size: int = config_field(
        int32(1, 1000), "200", "Maximum number of members of a share group."
    )
    group_share_max_share_sessions: int = config_field(
        int32(1), "2000", "Maximum number of share sessions of the broker."
    )
    share_coordinator_state_topic_num_partitions: int = config_field(
        int32(1), "50", "Number of partitions of __share_group_state."
    )
    share_coordinator_state_topic_segment_bytes: int = config_field(
        int32(1), "104857600", "segment.bytes of __share_group_state."
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = config_field(
        int32(0, 500),
        "500",
        "Number of changes of a share partition after which the partition's whole state is written"
        " again.",
    )

    transaction_max_timeout_ms: int = config_field(
        int32(1), "900000", "Maximum timeout of a transaction, in ms."
    )
    transactional_id_expiration_ms: int = config_field(
        int32(1),
        "604800000",
        "A transactional id that is unused for this time in ms is removed.",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = config_field(
        int32(1), "10000", "Time in ms between two searches for transactions that have timed out."
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = config_field(
        int32(1), "3600000", "Time in ms between two searches for expired transactional ids."
    )
    transaction_state_log_num_partitions: int = config_field(
        int32(1), "50", "Number of partitions of __transaction_state."
    )
    transaction_state_log_segment_bytes: int = config_field(
        int32(1), "104857600", "segment.bytes of __transaction_state."
    )

    log_retention_check_interval_ms: int = config_field(
        int64(1), "300000", "Time in ms between two searches for segments that retention deletes."
    )
    log_initial_task_delay_ms: int = config_field(
        int64(0), "30000", "Delay in ms before the first run of background work."
    )
    log_flush_offset_checkpoint_interval_ms: int = config_field(
        int32(0), "60000", "Time in ms between two writes of recovery points."
    )
    producer_id_expiration_ms: int = config_field(
        int32(1), "86400000", "The state of a producer that is idle for this time in ms is removed."
    )
    producer_id_expiration_check_interval_ms: int = config_field(
        int32(1), "600000", "Time in ms between two searches for expired producers."
    )

    log_cleaner_enable: bool = config_field(
        FLAG, "true", "Whether the broker compacts topics with cleanup.policy=compact."
    )
    log_cleaner_threads: int = config_field(
        int32(0),
        "1",
        "Number of partitions that are compacted at the same time, each in its own process.",
    )
    log_cleaner_dedupe_buffer_size: int = config_field(
        int64(1_048_576),
        "134217728",
        "Memory of the offset maps of all compactions, in bytes; at least 1 MiB for each of"
        " log.cleaner.threads.",
    )
    log_cleaner_io_buffer_load_factor: float = config_field(
        LOAD_FACTOR,
        "0.9",
        "Maximum share of the offset map's slots that a compaction fills; a compaction with more"
        " keys needs several passes over the log.",
    )
    log_cleaner_io_max_bytes_per_second: float = config_field(
        RATE,
        "1.7976931348623157E308",
        "Maximum bytes per second that all compactions together read and write.",
    )
    log_cleaner_backoff_ms: int = config_field(
        int64(0),
        "15000",
        "Pause in ms if nothing is due for compaction. A failed compaction is retried after this"
        " pause, which doubles with each further failure, up to an hour.",
    )

    tidelog_durability: Durability = config_field(
        DURABILITY,
        "page-cache",
        "Guarantee of an acknowledgement with acks=all. `page-cache`: records are in the page"
        " cache, as in Kafka on one node; `fsync`: records and append times are synced to the disk"
        " (waiting appends to a partition share one sync).",
    )
    tidelog_legacy_clients: bool = config_field(
        FLAG, "false", "Whether Produce v0-v2, Fetch v0-v3 and ListOffsets v0 are supported."
    )
    tidelog_metrics_listen: str = config_field(
        TEXT, "", "Address HOST:PORT of /metrics, /healthz and /readyz; empty: not served."
    )
    tidelog_busy_poll_us: int = config_field(
        int32(0, 1000),
        "200",
        "Time in µs for which the event loop polls for the next request before it sleeps. The loop"
        " polls only while small requests follow each other quickly. With polling, responses are"
        " faster, but the broker uses more CPU. 0: no polling.",
    )

    topic_defaults: Mapping[str, str] = field(default_factory=dict)
    without_effect: Mapping[str, str] = field(default_factory=dict)
    explicit_names: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> tuple[Self, list[ConfigNote]]:
        """Parse the settings of a broker; return them and notes for the user.

        Args:
            texts: Texts of broker settings and topic defaults (`log.retention.hours`), by name.

        Raises:
            ConfigError: A setting is unknown, not supported or invalid, or two settings contradict
                each other.
            ConfigErrors: Several names or values are invalid.
        """
        parsed = _ParsedSettings()
        parsed.take_all(texts)
        _, topic_notes = TopicConfig.parse({}, broker=parsed.topics)
        make: Callable[..., Self] = cls
        names = frozenset(texts.keys() & BROKER_CONFIG_BY_NAME.keys())
        config = make(
            **parsed.values,
            topic_defaults=parsed.topics,
            without_effect=parsed.idle,
            explicit_names=names,
        )
        config.ensure_consistent()
        return config, parsed.notes + topic_notes

    @property
    def cleaner_map_bytes(self) -> int:
        """Memory of one cleaner's offset map, in bytes."""
        return self.log_cleaner_dedupe_buffer_size // max(self.log_cleaner_threads, 1)

    def ensure_consistent(self) -> None:
        """Check combinations of settings; raises ConfigError if two contradict each other."""
        if self.cleaner_map_bytes < CLEANER_MAP_BYTES_MIN:
            raise ConfigError(
                "log.cleaner.dedupe.buffer.size",
                str(self.log_cleaner_dedupe_buffer_size),
                f"must be {CLEANER_MAP_BYTES_MIN} or more for each of"
                f" log.cleaner.threads={self.log_cleaner_threads}",
            )

        for name in ("session.timeout.ms", "heartbeat.interval.ms", "assignment.interval.ms"):
            self._ensure_between("consumer", name)
        for name in BOUNDED:
            self._ensure_between("share", name)

    def _ensure_between(self, kind: str, name: str) -> None:
        """Check that a setting of a group protocol is between its bounds, inclusive."""
        texts = [f"group.{kind}.{part}{name}" for part in ("min.", "", "max.")]
        low, value, high = (int(self.text(text)) for text in texts)
        if not low <= value <= high:
            raise ConfigError(
                texts[1], str(value), f"must be between {texts[0]}={low} and {texts[2]}={high}"
            )

    def text(self, name: str) -> str:
        """Return a setting's value in Kafka's format; raises ConfigError for an unknown name."""
        key = BROKER_CONFIG_BY_NAME.get(name)
        if key is None:
            raise _unknown(name)
        value: ConfigValue = getattr(self, key.attribute)
        return text_of(value)


BROKER_CONFIGS: Final = keys_of(BrokerConfig)

BROKER_CONFIG_BY_NAME: Final = {key.name: key for key in BROKER_CONFIGS}


@dataclass(slots=True, eq=False)
class _ParsedSettings:
    """Parsed settings, by category."""

    values: dict[str, ConfigValue] = field(default_factory=dict)
    topics: dict[str, str] = field(default_factory=dict)
    idle: dict[str, str] = field(default_factory=dict)
    notes: list[ConfigNote] = field(default_factory=list)

    def take_all(self, texts: Mapping[str, str]) -> None:
        """Parse settings; raises ConfigError, or ConfigErrors if several are invalid."""
        errors = []
        for name, text in texts.items():
            try:
                self._take(name, text)
            except ConfigError as error:
                errors.append(error)
        if errors:
            raise errors[0] if len(errors) == 1 else ConfigErrors(errors)

    def _take(self, name: str, text: str) -> None:
        key = BROKER_CONFIG_BY_NAME.get(name)
        if key is not None:
            self.values[key.attribute] = key_value(key, text)
        elif name in broker_names():
            TopicConfig.parse({}, broker={name: text})
            self.topics[name] = text
        elif name in WITHOUT_EFFECT or name in FORMER:
            self._take_idle(name, text)
        else:
            raise _not_served(name) if name in NOT_SERVED else _unknown(name)

    def _take_idle(self, name: str, text: str) -> None:
        key = WITHOUT_EFFECT.get(name)
        value = text.strip() if key is None else text_of(key_value(key, text))
        self.idle[name] = "" if key is not None and key.kind is PASSWORD else value
        names_listeners = name in (CONTROLLER_LISTENERS, CONTROL_PLANE)
        reason = "its listeners are ignored" if names_listeners else "has no effect in tidelog"
        self.notes.append(ConfigNote(NoteKind.NO_EFFECT, name, reason))


def _not_served(name: str) -> ConfigError:
    """Build the error for a setting of Kafka that the broker refuses.

    The broker refuses a setting that it does not implement if users would rely on the setting's
    effect.
    """
    return ConfigError(name, None, "is a Kafka setting that this broker does not support")


def _unknown(name: str) -> ConfigError:
    names = (*BROKER_CONFIG_BY_NAME, *WITHOUT_EFFECT, *broker_names())
    return unknown_setting(name, "broker", names)


_OF_BROKERS: Final = frozenset(
    {
        "log.cleaner.backoff.ms",
        "log.cleaner.dedupe.buffer.size",
        "log.cleaner.io.buffer.load.factor",
        "max.connections",
        "max.connections.per.ip",
        "max.connections.per.ip.overrides",
        "producer.id.expiration.ms",
    }
)

_FIXED: Final = frozenset({"log.flush.scheduler.interval.ms"})

# Maps the name of a broker setting to the topic setting for which it is the default. Each of these
# broker settings can be changed at run time. `DYNAMIC_CONFIGS` has them and all other settings that
# can be changed at run time.
TOPIC_DEFAULTS: Final = {
    synonym.name: key
    for key in TOPIC_CONFIGS
    for synonym in key.synonyms
    if synonym.factor == 1 and synonym.name not in _FIXED
} | {name: key for name, key in TOPIC_CONFIG_BY_NAME.items() if name.startswith("tidelog.")}

DYNAMIC_CONFIGS: Final = _OF_BROKERS | TOPIC_DEFAULTS.keys() | CHANGEABLE


def changed_config(started: BrokerConfig, settings: Mapping[str, str]) -> BrokerConfig:
    """Return the settings of a running broker after changes.

    Args:
        started: Settings at the start.
        settings: Texts of changed settings, by a name in `DYNAMIC_CONFIGS`.

    Raises:
        ConfigError: A setting can't be changed, a value is invalid, or two values contradict each
            other.
    """
    values: dict[str, ConfigValue] = {}
    topics = dict(started.topic_defaults)
    for name, text in settings.items():
        if name in TOPIC_DEFAULTS:
            topics[name] = text
        elif name in _OF_BROKERS:
            key = BROKER_CONFIG_BY_NAME[name]
            values[key.attribute] = key_value(key, text)
        elif name in CHANGEABLE:
            # the setting has no effect, but its value must be valid
            key_value(WITHOUT_EFFECT[name], text)
        else:
            raise ConfigError(name, text, "can't be changed while the broker runs")
    TopicConfig.parse({}, broker=topics)
    make: Callable[..., BrokerConfig] = replace
    config = make(started, **values, topic_defaults=topics)
    config.ensure_consistent()
    return config


def is_list(name: str) -> bool:
    """Whether a broker setting has a list as its value."""
    key = TOPIC_DEFAULTS.get(name) or BROKER_CONFIG_BY_NAME.get(name) or WITHOUT_EFFECT.get(name)
    return key is not None and key.kind.type_name == "list"
