"""A broker's settings as typed values.

Source: Kafka 4.3's `KafkaConfig`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Self, cast

from tidelog.config.broker_keys import BROKER_CONFIGS, WITHOUT_EFFECT
from tidelog.config.keys import ConfigKey
from tidelog.config.resolve import ConfigNote, NoteKind, broker_names
from tidelog.config.topic import TopicConfig
from tidelog.config.values import ConfigValue, Durability, text_of
from tidelog.errors import ConfigError
from tidelog.types import INT32_MAX

BROKER_CONFIG_BY_NAME: Final = {key.name: key for key in BROKER_CONFIGS}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """Every broker setting, under its name with underscores; docs/config.md says what each does.

    Made by `parse`, which checks names and ranges; the constructor trusts its caller. The field
    defaults are those of the table (a test compares them).

    Attributes:
        topic_defaults: Settings of topics that have none of their own, under the broker's names.
    """

    node_id: int = 0
    listeners: str = "PLAINTEXT://127.0.0.1:9092"
    advertised_listeners: str = ""
    log_dirs: str = ""
    num_partitions: int = 1
    default_replication_factor: int = 1
    auto_create_topics_enable: bool = True
    delete_topic_enable: bool = True
    socket_request_max_bytes: int = 104_857_600
    queued_max_request_bytes: int = 268_435_456
    max_connections: int = INT32_MAX
    max_connections_per_ip: int = INT32_MAX
    connections_max_idle_ms: int = 600_000
    fetch_max_bytes: int = 57_671_680
    max_incremental_fetch_session_cache_slots: int = 1000
    min_incremental_fetch_session_eviction_ms: int = 120_000
    group_min_session_timeout_ms: int = 6000
    group_max_session_timeout_ms: int = 1_800_000
    group_initial_rebalance_delay_ms: int = 3000
    group_max_size: int = INT32_MAX
    offsets_topic_num_partitions: int = 50
    offsets_topic_replication_factor: int = 3
    offsets_topic_segment_bytes: int = 104_857_600
    offsets_topic_compression_codec: int = 0
    offsets_retention_minutes: int = 10_080
    offsets_retention_check_interval_ms: int = 600_000
    offset_metadata_max_bytes: int = 4096
    log_retention_check_interval_ms: int = 300_000
    log_initial_task_delay_ms: int = 30_000
    log_flush_offset_checkpoint_interval_ms: int = 60_000
    producer_id_expiration_ms: int = 86_400_000
    producer_id_expiration_check_interval_ms: int = 600_000
    tidelog_durability: Durability = Durability.PAGE_CACHE
    tidelog_legacy_clients: bool = False
    tidelog_metrics_listen: str = ""
    topic_defaults: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> tuple[Self, list[ConfigNote]]:
        """The settings of a broker, and what to tell who wrote them.

        Args:
            given: Names and texts, of brokers and of topics' defaults (`log.retention.hours`).

        Raises:
            ConfigError: An unknown name or a value outside its range.
        """
        values: dict[str, ConfigValue] = {}
        topics: dict[str, str] = {}
        notes: list[ConfigNote] = []
        for name, text in given.items():
            key = BROKER_CONFIG_BY_NAME.get(name)
            if key is not None:
                values[key.attribute] = _read(key, text)
            elif name in WITHOUT_EFFECT:
                notes.append(ConfigNote(NoteKind.NO_EFFECT, name, "has no effect here"))
            elif name in broker_names():
                topics[name] = text
            else:
                raise _unknown(name)
        _, topic_notes = TopicConfig.parse({}, broker=topics)
        made = cast("Callable[..., Self]", cls)(**values, topic_defaults=topics)
        return made, notes + topic_notes

    def text(self, name: str) -> str:
        """A setting's value as Kafka prints it; raises ConfigError for an unknown name."""
        key = BROKER_CONFIG_BY_NAME.get(name)
        if key is None:
            raise _unknown(name)
        return text_of(cast("ConfigValue", getattr(self, key.attribute)))


def _read(key: ConfigKey, text: str) -> ConfigValue:
    try:
        return key.kind.parse(text)
    except ValueError:
        raise ConfigError(key.name, text, f"must be {key.kind.allowed}") from None


def _unknown(name: str) -> ConfigError:
    import difflib  # only for errors: it costs 3 ms

    known = (*BROKER_CONFIG_BY_NAME, *broker_names())
    words = difflib.get_close_matches(name.lower().replace("_", "."), known, n=1)
    hint = f"; did you mean {words[0]}?" if words else ""
    return ConfigError(name, None, f"is not a broker setting{hint}")
