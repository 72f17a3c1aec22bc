"""Settings of compaction: contradictions between them, and the limits of their values."""

import pytest

from tidelog.config import BrokerConfig, TopicConfig
from tidelog.errors import ConfigError


def test_the_defaults_are_kafkas() -> None:
    config, notes = BrokerConfig.parse({})
    assert notes == []
    assert config.cleaner_map_bytes == 128 << 20
    topic, _ = TopicConfig.parse({})
    assert (topic.tidelog_compaction_strategy.value, topic.tidelog_compaction_min_dirty_bytes) == (
        "offset",
        -1,
    )


@pytest.mark.parametrize(
    "given",
    [
        {"tidelog.compaction.strategy": "header"},
        {"tidelog.compaction.strategy.header": "version"},
        {"tidelog.compaction.strategy": "timestamp", "tidelog.compaction.strategy.header": "v"},
        {"tidelog.compaction.strategy": "latest"},
        {"tidelog.compaction.min.dirty.bytes": "0"},
        {"tidelog.cleaner.hash": "sha1"},
    ],
)
def test_invalid_compaction_settings_of_a_topic_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        TopicConfig.parse(given)


def test_a_version_header_is_valid_with_its_strategy() -> None:
    given = {"tidelog.compaction.strategy": "header", "tidelog.compaction.strategy.header": "v"}
    assert TopicConfig.parse(given)[0].tidelog_compaction_strategy_header == "v"


@pytest.mark.parametrize(
    "given",
    [
        {"log.cleaner.threads": "129"},  # leaves each thread less than 1 MiB of buffer
        {"log.cleaner.dedupe.buffer.size": "1048575"},
        {"log.cleaner.io.buffer.load.factor": "0.91"},
        {"log.cleaner.io.max.bytes.per.second": "0"},
        {"log.cleaner.io.max.bytes.per.second": "nan"},
    ],
)
def test_invalid_cleaner_settings_of_a_broker_are_refused(given: dict[str, str]) -> None:
    with pytest.raises(ConfigError):
        BrokerConfig.parse(given)


def test_threads_share_the_map() -> None:
    assert BrokerConfig.parse({"log.cleaner.threads": "128"})[0].cleaner_map_bytes == 1 << 20
    assert BrokerConfig.parse({"log.cleaner.threads": "0"})[0].cleaner_map_bytes == 128 << 20
