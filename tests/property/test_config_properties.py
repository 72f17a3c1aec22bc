"""Any valid settings survive parsing and printing; values out of range are rejected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.config import TOPIC_CONFIGS, ConfigKey, TopicConfig, normalize
from tidelog.errors import ConfigError
from tidelog.types import INT32_MAX, INT64_MAX, INT64_MIN

WORDS = {
    "cleanup.policy": ["", "compact", "delete", "delete,compact", " compact , delete "],
    "compression.type": ["producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"],
    "message.timestamp.type": ["CreateTime", "LogAppendTime"],
    "tidelog.tier.url": ["", "s3://bucket/logs", " file:///srv/tier "],
    "tidelog.retention.clock": ["record", "append", " record-capped "],
    "tidelog.lookup.clock": ["record", " append "],
    "tidelog.compaction.strategy": ["offset", " timestamp "],
    "tidelog.compaction.strategy.header": [""],
    "tidelog.compaction.scheduler": ["brute-force", " generational "],
    "tidelog.compaction.space.factor": ["1.1", " 2 ", "99.5"],
    "tidelog.cleaner.hash": ["siphash", " md5 "],
}


def texts_for(key: ConfigKey) -> st.SearchStrategy[str]:
    """Return a strategy of texts for a setting, in its documented range."""
    if key.name in WORDS:
        return st.sampled_from(WORDS[key.name])
    match key.kind.type_name:
        case "boolean":
            return st.sampled_from(["true", "FALSE", " True "])
        case "double":
            return st.floats(0, 1).map(repr)
        case "list":
            return st.sampled_from(["", "*", "0:1", "0:1, 2:3"])
        case _:
            return numbers_for(key).map(str)


def numbers_for(key: ConfigKey) -> st.SearchStrategy[int]:
    ceiling = INT32_MAX if key.kind.type_name == "int" else INT64_MAX
    words = key.kind.allowed.split()
    if "from" in words:
        return st.integers(int(words[words.index("from") + 1]), int(words[words.index("to") + 1]))
    low = int(words[words.index(">=") + 1]) if ">=" in words else INT64_MIN
    return st.integers(low, ceiling)


def settings_of(keys: tuple[ConfigKey, ...]) -> st.SearchStrategy[dict[str, str]]:
    return st.fixed_dictionaries({}, optional={key.name: texts_for(key) for key in keys})


# The minimum lag is left out: a random value may exceed the maximum lag, which is an error.
FREE_KEYS = tuple(key for key in TOPIC_CONFIGS if key.name != "min.compaction.lag.ms")


@given(settings_of(FREE_KEYS))
def test_settings_read_print_and_read_again(given_settings: dict[str, str]) -> None:
    config, _ = TopicConfig.parse(given_settings)
    texts, _ = normalize(given_settings)
    assert texts.keys() == given_settings.keys()
    assert TopicConfig.parse(texts)[0] == config
    assert normalize(texts)[0] == texts
    assert TopicConfig.parse(config.texts())[0] == config
    for name in given_settings:
        assert config.text(name) == texts[name]


@given(settings_of(FREE_KEYS), settings_of(FREE_KEYS))
def test_broker_settings_apply_exactly_where_the_topic_has_none(
    topic: dict[str, str], broker: dict[str, str]
) -> None:
    config, _ = TopicConfig.parse(topic, broker=broker)
    assert config == TopicConfig.parse(broker | topic)[0]


@given(st.sampled_from([key.name for key in TOPIC_CONFIGS]), st.text(max_size=12))
def test_any_text_is_read_or_refused_by_one_error(name: str, text: str) -> None:
    try:
        config, _ = TopicConfig.parse({name: text})
    except ConfigError as error:
        assert name in str(error)  # noqa: PT017 - most texts are refused, some are not
        return
    assert TopicConfig.parse({name: config.text(name)})[0] == config


@given(st.text(max_size=20))
def test_any_other_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        TopicConfig.parse({f"x{name}": "1"})
