"""Broker settings as typed values, and the changes that a running broker accepts.

`BrokerConfig` parses and checks the settings of `broker_keys`. Precedence, highest first: a value
set for this broker at run time, a value set for all brokers at run time, the value at start, the
default. A topic default changes at run time only under its name with the finest unit
(`log.retention.ms`); the coarser names (`log.retention.hours`) keep their value from the start, as
in Kafka.

Source: Kafka 4.3's `KafkaConfig` and `DynamicBrokerConfig`; KIP-226.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Self, cast

from tidelog.config.broker_keys import BOUNDED, BROKER_CONFIGS, PROTOCOLS, TOKEN_ALGORITHMS
from tidelog.config.topic import ConfigNote, NoteKind, TopicConfig, broker_names
from tidelog.config.topic_keys import TOPIC_CONFIG_BY_NAME, TOPIC_CONFIGS
from tidelog.config.unused_keys import (
    CHANGEABLE,
    CONTROL_PLANE,
    CONTROLLER_LISTENERS,
    FORMER,
    NOT_SERVED,
    WITHOUT_EFFECT,
)
from tidelog.config.values import (
    PASSWORD,
    ConfigKey,
    ConfigValue,
    Durability,
    MigrationPolicy,
    text_of,
)
from tidelog.errors import ConfigError, ConfigErrors
from tidelog.types import INT32_MAX

# Kafka's: with less, a log is read over and over.
CLEANER_MAP_BYTES_MIN: Final = 1 << 20


BROKER_CONFIG_BY_NAME: Final = {key.name: key for key in BROKER_CONFIGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Every broker setting, under its name with underscores; docs/config.md says what each does.

    Made by `parse`, which checks names and ranges; the constructor trusts its caller. The field
    defaults are those of the table (a test compares them).

    Attributes:
        topic_defaults: Settings of topics that have none of their own, under the broker's names.
        without_effect: Texts of settings that have no use here, as they were given; none of a
            password.
        given_names: Settings of the table that were given, whether or not as their defaults are.
    """

    node_id: int = 0
    broker_rack: str | None = None
    listeners: str = "PLAINTEXT://127.0.0.1:9092"
    advertised_listeners: str = ""
    listener_security_protocol_map: str = ",".join(f"{name}:{name}" for name in PROTOCOLS)
    sasl_enabled_mechanisms: tuple[str, ...] = ()
    tidelog_sasl_plain_users_file: str = ""
    sasl_oauthbearer_jwks_endpoint_url: str = ""
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = 3_600_000
    sasl_oauthbearer_expected_audience: str = ""
    sasl_oauthbearer_expected_issuer: str = ""
    sasl_oauthbearer_clock_skew_seconds: int = 30
    sasl_oauthbearer_sub_claim_name: str = "sub"
    tidelog_sasl_oauthbearer_algorithms: tuple[str, ...] = TOKEN_ALGORITHMS
    connections_max_reauth_ms: int = 0
    connection_failed_authentication_delay_ms: int = 100
    ssl_keystore_location: str = ""
    ssl_keystore_type: str = "PEM"
    ssl_key_password: str = field(default="", repr=False)
    ssl_truststore_location: str = ""
    ssl_truststore_type: str = "PEM"
    ssl_client_auth: str = "none"
    ssl_enabled_protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ssl_principal_mapping_rules: str = "DEFAULT"
    authorizer_class_name: str = ""
    super_users: str = ""
    allow_everyone_if_no_acl_found: bool = False
    log_dirs: str = ""
    log_dir: str = ""
    num_partitions: int = 1
    default_replication_factor: int = 1
    auto_create_topics_enable: bool = True
    delete_topic_enable: bool = True
    socket_request_max_bytes: int = 104_857_600
    socket_send_buffer_bytes: int = 102_400
    queued_max_request_bytes: int = 268_435_456
    max_connections: int = INT32_MAX
    max_connections_per_ip: int = INT32_MAX
    max_connections_per_ip_overrides: tuple[str, ...] = ()
    connections_max_idle_ms: int = 600_000
    fetch_max_bytes: int = 57_671_680
    max_incremental_fetch_session_cache_slots: int = 1000
    min_incremental_fetch_session_eviction_ms: int = 120_000
    group_min_session_timeout_ms: int = 6000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3000
    group_max_size: int = INT32_MAX
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_min_session_timeout_ms: int = 45_000
    group_consumer_max_session_timeout_ms: int = 60_000
    group_consumer_heartbeat_interval_ms: int = 5000
    group_consumer_min_heartbeat_interval_ms: int = 5000
    group_consumer_max_heartbeat_interval_ms: int = 15_000
    group_consumer_assignment_interval_ms: int = 1000
    group_consumer_min_assignment_interval_ms: int = 0
    group_consumer_max_assignment_interval_ms: int = 15_000
    group_consumer_max_size: int = INT32_MAX
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    group_consumer_migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL
    group_consumer_regex_refresh_interval_ms: int = 600_000
    group_share_session_timeout_ms: int = 45_000
    group_share_min_session_timeout_ms: int = 45_000
    group_share_max_session_timeout_ms: int = 60_000
    group_share_heartbeat_interval_ms: int = 5000
    group_share_min_heartbeat_interval_ms: int = 5000
    group_share_max_heartbeat_interval_ms: int = 15_000
    group_share_assignment_interval_ms: int = 1000
    group_share_min_assignment_interval_ms: int = 0
    group_share_max_assignment_interval_ms: int = 15_000
    group_share_record_lock_duration_ms: int = 30_000
    group_share_min_record_lock_duration_ms: int = 15_000
    group_share_max_record_lock_duration_ms: int = 60_000
    group_share_delivery_count_limit: int = 5
    group_share_min_delivery_count_limit: int = 2
    group_share_max_delivery_count_limit: int = 10
    group_share_partition_max_record_locks: int = 2000
    group_share_min_partition_max_record_locks: int = 100
    group_share_max_partition_max_record_locks: int = 4000
    group_share_max_size: int = 200
    group_share_max_share_sessions: int = 2000
    share_coordinator_state_topic_num_partitions: int = 50
    share_coordinator_state_topic_segment_bytes: int = 104_857_600
    share_coordinator_snapshot_update_records_per_snapshot: int = 500
    offsets_topic_num_partitions: int = 50
    offsets_topic_replication_factor: int = 3
    offsets_topic_segment_bytes: int = 104_857_600
    offsets_topic_compression_codec: int = 0
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    offset_metadata_max_bytes: int = 4096
    transaction_max_timeout_ms: int = 900_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = 10_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transaction_state_log_num_partitions: int = 50
    transaction_state_log_segment_bytes: int = 104_857_600
    log_retention_check_interval_ms: int = 300_000
    log_initial_task_delay_ms: int = 30_000
    log_flush_offset_checkpoint_interval_ms: int = 60_000
    producer_id_expiration_ms: int = 86_400_000
    producer_id_expiration_check_interval_ms: int = 600_000
    log_cleaner_enable: bool = True
    log_cleaner_threads: int = 1
    log_cleaner_dedupe_buffer_size: int = 134_217_728
    log_cleaner_io_buffer_load_factor: float = 0.9
    log_cleaner_io_max_bytes_per_second: float = 1.7976931348623157e308
    log_cleaner_backoff_ms: int = 15_000
    tidelog_durability: Durability = Durability.PAGE_CACHE
    tidelog_legacy_clients: bool = False
    tidelog_metrics_listen: str = ""
    tidelog_busy_poll_us: int = 200
    topic_defaults: Mapping[str, str] = field(default_factory=dict)
    without_effect: Mapping[str, str] = field(default_factory=dict)
    given_names: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> tuple[Self, list[ConfigNote]]:
        """The settings of a broker, and what to tell who wrote them.

        Args:
            given: Names and texts, of brokers and of topics' defaults (`log.retention.hours`).

        Raises:
            ConfigError: An unknown name or a value outside its range.
            ConfigErrors: Several of them.
        """
        parsed = _Given()
        parsed.take_all(given)
        _, topic_notes = TopicConfig.parse({}, broker=parsed.topics)
        make = cast("Callable[..., Self]", cls)
        names = frozenset(given.keys() & BROKER_CONFIG_BY_NAME.keys())
        made = make(
            **parsed.values,
            topic_defaults=parsed.topics,
            without_effect=parsed.idle,
            given_names=names,
        )
        made.ensure_consistent()
        return made, parsed.notes + topic_notes

    @property
    def cleaner_map_bytes(self) -> int:
        """Memory of one cleaner's offset map."""
        return self.log_cleaner_dedupe_buffer_size // max(self.log_cleaner_threads, 1)

    def ensure_consistent(self) -> None:
        """Check what no single key can: raises ConfigError where two settings contradict."""
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
        """A setting of groups of a protocol lies between its bounds, which are settings too."""
        texts = [f"group.{kind}.{part}{name}" for part in ("min.", "", "max.")]
        low, value, high = (int(self.text(text)) for text in texts)
        if not low <= value <= high:
            raise ConfigError(
                texts[1], str(value), f"must lie between {texts[0]}={low} and {texts[2]}={high}"
            )

    def text(self, name: str) -> str:
        """A setting's value as Kafka prints it; raises ConfigError for an unknown name."""
        key = BROKER_CONFIG_BY_NAME.get(name)
        if key is None:
            raise _unknown(name)
        return text_of(cast("ConfigValue", getattr(self, key.attribute)))


@dataclass(slots=True)
class _Given:
    """Settings as they are read, by what they are about."""

    values: dict[str, ConfigValue] = field(default_factory=dict)
    topics: dict[str, str] = field(default_factory=dict)
    idle: dict[str, str] = field(default_factory=dict)
    notes: list[ConfigNote] = field(default_factory=list)

    def take_all(self, given: Mapping[str, str]) -> None:
        """Take settings; raises ConfigError, or ConfigErrors, where some can't be."""
        errors = []
        for name, text in given.items():
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
        is_place = name in (CONTROLLER_LISTENERS, CONTROL_PLANE)
        reason = "its listeners are left out" if is_place else "has no effect here"
        self.notes.append(ConfigNote(NoteKind.NO_EFFECT, name, reason))


def key_value(key: ConfigKey, text: str) -> ConfigValue:
    """Return the value that a text means for a setting; raises ConfigError."""
    try:
        return key.kind.parse(text)
    except ValueError:
        raise ConfigError(key.name, text, f"must be {key.kind.allowed}") from None


def _not_served(name: str) -> ConfigError:
    """Not passed over: who has set it relies on what it does."""
    return ConfigError(name, None, "is a setting of Kafka's that this broker does not have")


def _unknown(name: str) -> ConfigError:
    import difflib  # only for errors: it costs 3 ms

    names = (*BROKER_CONFIG_BY_NAME, *WITHOUT_EFFECT, *broker_names())
    words = difflib.get_close_matches(name.lower().replace("_", "."), names, n=1)
    hint = f"; did you mean {words[0]}?" if words else ""
    return ConfigError(name, None, f"is not a broker setting{hint}")


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


# Names of topics' defaults, each with the setting that it is the default of.
TOPIC_DEFAULTS: Final = {
    synonym.name: key
    for key in TOPIC_CONFIGS
    for synonym in key.synonyms
    if synonym.factor == 1 and synonym.name not in _FIXED
} | {name: key for name, key in TOPIC_CONFIG_BY_NAME.items() if name.startswith("tidelog.")}


DYNAMIC_CONFIGS: Final = _OF_BROKERS | TOPIC_DEFAULTS.keys() | CHANGEABLE


def changed_config(started: BrokerConfig, settings: Mapping[str, str]) -> BrokerConfig:
    """What holds once a broker that was started with some settings has got others.

    Args:
        started: What it was started with.
        settings: What was changed since, names of `DYNAMIC_CONFIGS` and texts.

    Raises:
        ConfigError: A name that can't be changed, a value outside its range, two that contradict.
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
            key_value(WITHOUT_EFFECT[name], text)  # shown, and nothing else
        else:
            raise ConfigError(name, text, "can't be changed while the broker runs")
    TopicConfig.parse({}, broker=topics)
    made = cast("Callable[..., BrokerConfig]", replace)(started, **values, topic_defaults=topics)
    made.ensure_consistent()
    return made


def is_list(name: str) -> bool:
    """Whether a broker's setting has a list for its value."""
    key = TOPIC_DEFAULTS.get(name) or BROKER_CONFIG_BY_NAME.get(name) or WITHOUT_EFFECT.get(name)
    return key is not None and key.kind.type_name == "list"
