"""Topic settings have Kafka's names, defaults and ranges; other names are mapped and reported."""

from collections.abc import Mapping

import pytest

from tidelog.config import (
    DEFAULT_TOPIC_CONFIG,
    RETIRED,
    TOPIC_CONFIGS,
    CompressionType,
    ConfigNote,
    NoteKind,
    TopicConfig,
    key_names,
    normalize,
    plain_names,
    text_of,
)
from tidelog.errors import ConfigError
from tidelog.types import INT64_MAX, Codec, TimestampType

# Names, types and defaults of LogConfig.configDefCopy() in Kafka 4.3.0.
KAFKA_4_3 = """
cleanup.policy list delete
compression.gzip.level int -1
compression.lz4.level int 9
compression.type string producer
compression.zstd.level int 3
delete.retention.ms long 86400000
file.delete.delay.ms long 60000
flush.messages long 9223372036854775807
flush.ms long 9223372036854775807
follower.replication.throttled.replicas list
index.interval.bytes int 4096
internal.segment.bytes int
leader.replication.throttled.replicas list
local.retention.bytes long -2
local.retention.ms long -2
max.compaction.lag.ms long 9223372036854775807
max.message.bytes int 1048588
message.timestamp.after.max.ms long 3600000
message.timestamp.before.max.ms long 9223372036854775807
message.timestamp.type string CreateTime
min.cleanable.dirty.ratio double 0.5
min.compaction.lag.ms long 0
min.insync.replicas int 1
preallocate boolean false
remote.log.copy.disable boolean false
remote.log.delete.on.disable boolean false
remote.storage.enable boolean false
retention.bytes long -1
retention.ms long 604800000
segment.bytes int 1073741824
segment.index.bytes int 10485760
segment.jitter.ms long 0
segment.ms long 604800000
unclean.leader.election.enable boolean false
"""


def parse(
    given: Mapping[str, str], broker: Mapping[str, str] | None = None
) -> tuple[TopicConfig, list[ConfigNote]]:
    return TopicConfig.parse(given, broker=broker)


def test_names_types_and_defaults_are_those_of_kafka() -> None:
    ours = [
        f"{key.name} {key.kind.type_name} {key.default or ''}".strip()
        for key in TOPIC_CONFIGS
        if not key.name.startswith("tidelog.")
    ]
    assert sorted(ours) == KAFKA_4_3.split("\n")[1:-1]


def test_without_settings_all_defaults_apply_without_a_note() -> None:
    assert parse({}) == (TopicConfig(), [])
    assert TopicConfig() == DEFAULT_TOPIC_CONFIG


def test_every_default_prints_as_the_text_it_was_read_from() -> None:
    for key in TOPIC_CONFIGS:
        assert TopicConfig().text(key.name) == (key.default or "")


# Texts of settings, each with the value that LogConfig of Kafka 4.3.0 returned for the text.
@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("cleanup.policy", "", ()),
        ("cleanup.policy", "delete,delete", ("delete",)),
        ("cleanup.policy", " delete , compact ", ("delete", "compact")),
        ("preallocate", "TRUE", True),
        ("preallocate", " true ", True),
        ("retention.ms", "+5", 5),
        ("retention.ms", " 5 ", 5),
        ("retention.ms", "-1", -1),
        ("retention.bytes", "-5", -5),
        ("min.cleanable.dirty.ratio", ".5", 0.5),
        ("min.cleanable.dirty.ratio", "5e-1", 0.5),
        ("message.timestamp.type", " CreateTime ", TimestampType.CREATE_TIME),
        ("message.timestamp.type", "LogAppendTime", TimestampType.LOG_APPEND_TIME),
        ("compression.type", "zstd", CompressionType.ZSTD),
        ("compression.gzip.level", "-1", -1),
        ("compression.gzip.level", "9", 9),
        ("compression.zstd.level", "-131072", -131072),
        ("internal.segment.bytes", "14", 14),
        ("leader.replication.throttled.replicas", "*", ("*",)),
        ("leader.replication.throttled.replicas", "0:1,1:2", ("0:1", "1:2")),
        ("remote.log.copy.disable", "true", True),
    ],
)
def test_value_is_read_as_kafka_reads_it(name: str, text: str, value: object) -> None:
    config, _ = parse({name: text})
    assert getattr(config, name.replace(".", "_")) == value


# Texts that tidelog refuses; Kafka 4.3.0 refused all but the last three.
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("cleanup.policy", "DELETE"),
        ("cleanup.policy", ","),
        ("cleanup.policy", "delete,"),
        ("cleanup.policy", "compact,none"),
        ("preallocate", "1"),
        ("retention.ms", "1_000"),
        ("retention.ms", ""),
        ("retention.ms", "-2"),
        ("retention.ms", "9223372036854775808"),
        ("retention.ms", "1e3"),
        ("retention.ms", "0x10"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("min.cleanable.dirty.ratio", "Infinity"),
        ("message.timestamp.type", "createtime"),
        ("message.timestamp.type", "NoTimestampType"),
        ("compression.type", "none"),
        ("compression.type", "LZ4"),
        ("compression.gzip.level", "0"),
        ("compression.lz4.level", "18"),
        ("segment.bytes", "1048575"),
        ("segment.bytes", "2147483648"),
        ("max.message.bytes", "-1"),
        ("leader.replication.throttled.replicas", "x"),
        ("min.cleanable.dirty.ratio", "NaN"),
        ("retention.ms", "\u0663"),
        ("internal.segment.bytes", "-3"),
    ],
)
def test_a_bad_value_is_refused_with_the_valid_ones(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse({name: text})
    key = next(key for key in TOPIC_CONFIGS if key.name == name)
    assert (caught.value.key, caught.value.value) == (name, text)
    assert key.kind.allowed in str(caught.value)


def test_a_huge_number_is_refused_before_it_is_computed() -> None:
    with pytest.raises(ConfigError):
        parse({"retention.ms": "9" * 100_000})


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("retention.m", "retention.ms"),
        ("retention_ms", "retention.ms"),
        ("Segment.Bytes", "segment.bytes"),
        ("log.retention.hour", "log.retention.hours"),
    ],
)
def test_unknown_name_is_refused_with_the_nearest_one(name: str, nearest: str) -> None:
    with pytest.raises(ConfigError, match=f"did you mean {nearest}\\?") as caught:
        parse({name: "1"})
    assert caught.value.key == name
    assert caught.value.value is None


def test_the_error_for_an_unlike_name_has_no_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"^xyzzy: unknown topic setting$"):
        parse({"xyzzy": "1"})


def test_brokers_own_settings_are_skipped_but_bad_values_are_not() -> None:
    assert parse({}, {"log.dirs": "/data", "node.id": "1"}) == (TopicConfig(), [])
    with pytest.raises(ConfigError) as caught:
        parse({}, {"log.retention.hours": "soon"})
    assert caught.value.key == "log.retention.hours"


@pytest.mark.parametrize(
    ("synonym", "text", "attribute", "value"),
    [
        ("log.retention.hours", "2", "retention_ms", 7_200_000),
        ("log.retention.minutes", "3", "retention_ms", 180_000),
        ("log.retention.ms", "4", "retention_ms", 4),
        ("log.retention.hours", "-1", "retention_ms", -1),
        ("log.roll.hours", "1", "segment_ms", 3_600_000),
        ("log.roll.ms", "5", "segment_ms", 5),
        ("log.roll.jitter.hours", "1", "segment_jitter_ms", 3_600_000),
        ("log.index.size.max.bytes", "3145728", "segment_index_bytes", 3_145_728),
        ("message.max.bytes", "7", "max_message_bytes", 7),
        ("log.cleaner.min.cleanable.ratio", "0.25", "min_cleanable_dirty_ratio", 0.25),
        ("log.flush.scheduler.interval.ms", "9", "flush_ms", 9),
    ],
)
@pytest.mark.parametrize("at_broker", [False, True])
def test_synonym_is_mapped_and_reported(
    synonym: str, text: str, attribute: str, value: object, *, at_broker: bool
) -> None:
    given = {synonym: text}
    config, notes = parse({}, given) if at_broker else parse(given)
    assert getattr(config, attribute) == value
    assert [(note.kind, note.given) for note in notes] == [(NoteKind.RENAMED, synonym)]
    assert attribute.replace("_", ".") in notes[0].text


def test_every_synonym_of_the_table_maps_to_its_key() -> None:
    for key in TOPIC_CONFIGS:
        for synonym in key.synonyms:
            assert key_names(synonym.name) == (key.name,)


def test_finer_unit_wins_and_the_loser_is_reported() -> None:
    given = {"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "4"}
    config, notes = parse(given)
    assert config.retention_ms == 4
    shadowed = [note.given for note in notes if note.kind is NoteKind.SHADOWED]
    assert shadowed == ["log.retention.minutes", "log.retention.hours"]
    assert {note.text for note in notes if note.kind is NoteKind.SHADOWED} == {
        "ignored, because log.retention.ms is set, too"
    }


def test_own_name_wins_over_synonym_and_topic_over_broker() -> None:
    config, _ = parse({"log.retention.ms": "1", "retention.ms": "2"})
    assert config.retention_ms == 2
    config, _ = parse({"log.retention.hours": "1"}, {"log.retention.ms": "7", "log.roll.ms": "8"})
    assert (config.retention_ms, config.segment_ms) == (3_600_000, 8)


@pytest.mark.parametrize(
    "name", ["max.message.time.difference.ms", "message.timestamp.difference.max.ms"]
)
def test_the_limit_of_the_proposal_is_set_in_both_directions(name: str) -> None:
    config, notes = parse({name: "500"})
    assert config.message_timestamp_before_max_ms == 500
    assert config.message_timestamp_after_max_ms == 500
    assert [note.kind for note in notes] == [NoteKind.RENAMED, NoteKind.RENAMED]


def test_limit_of_the_proposal_yields_to_the_present_names() -> None:
    given = {"max.message.time.difference.ms": "500", "message.timestamp.after.max.ms": "9"}
    config, notes = parse(given)
    assert config.message_timestamp_before_max_ms == 500
    assert config.message_timestamp_after_max_ms == 9
    (ignored,) = (note.text for note in notes if note.kind is NoteKind.SHADOWED)
    name = "message.timestamp.after.max.ms"
    assert ignored == f"ignored for {name}, because {name} is set, too"


@pytest.mark.parametrize("name", sorted(RETIRED))
def test_a_retired_name_has_no_effect_and_is_reported(name: str) -> None:
    config, notes = parse({name: "3.0"})
    assert config == TopicConfig()
    assert [(note.kind, note.given) for note in notes] == [(NoteKind.RETIRED, name)]


def test_setting_without_effect_is_kept_and_reported_unless_it_is_the_default() -> None:
    config, notes = parse({"min.insync.replicas": "2", "preallocate": "false"})
    assert config.min_insync_replicas == 2
    assert [(note.kind, note.given) for note in notes] == [
        (NoteKind.NO_EFFECT, "min.insync.replicas")
    ]


def test_lags_that_contradict_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"max\.compaction\.lag\.ms=9"):
        parse({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "9"})
    with pytest.raises(ConfigError):
        parse({"min.compaction.lag.ms": "10"}, {"log.cleaner.max.compaction.lag.ms": "9"})
    parse({"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "9"})


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"segment.ms": "5", "segment.jitter.ms": "5"}, "segment.jitter.ms"),
        ({"retention.bytes": "1000"}, "retention.bytes"),
    ],
)
def test_legal_settings_that_hurt_are_reported(given: Mapping[str, str], name: str) -> None:
    _, notes = parse(given)
    assert [(note.kind, note.given) for note in notes] == [(NoteKind.ADVICE, name)]


def test_normalized_settings_have_present_names_and_plain_texts() -> None:
    texts, notes = normalize({"log.retention.hours": " +1", "cleanup.policy": "delete, compact"})
    assert texts == {"cleanup.policy": "delete,compact", "retention.ms": "3600000"}
    assert [note.given for note in notes] == ["log.retention.hours"]


def test_normalized_settings_give_the_same_config() -> None:
    given = {"max.message.time.difference.ms": "5", "log.roll.hours": "2", "preallocate": "TRUE"}
    texts, _ = normalize(given)
    assert parse(texts)[0] == parse(given)[0]
    assert normalize(texts)[0] == texts


def test_texts_read_back_as_the_same_config() -> None:
    config, _ = parse({"cleanup.policy": "", "internal.segment.bytes": "100", "flush.ms": "1"})
    assert parse(config.texts())[0] == config
    assert config.texts()["cleanup.policy"] == ""
    assert "internal.segment.bytes" not in TopicConfig().texts()


def test_text_of_one_setting() -> None:
    assert TopicConfig().text("message.timestamp.type") == "CreateTime"
    assert TopicConfig().text("preallocate") == "false"
    with pytest.raises(ConfigError):
        TopicConfig().text("log.roll.ms")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (2.0, "2.0"),
        (0.001, "0.001"),
        (0.0005, "5.0E-4"),
        (9_999_999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (12_345_678.9, "1.23456789E7"),
        (-1.5e10, "-1.5E10"),
        (1.7976931348623157e308, "1.7976931348623157E308"),
    ],
)
def test_numbers_with_fractions_are_written_as_by_java(value: float, text: str) -> None:
    assert text_of(value) == text


def test_derived_values() -> None:
    config, _ = parse({"cleanup.policy": "compact", "max.compaction.lag.ms": "70"})
    assert (config.is_compacted, config.is_deleted_by_age_or_size) == (True, False)
    assert config.roll_ms == 70
    assert TopicConfig().roll_ms == 604_800_000
    assert TopicConfig(max_compaction_lag_ms=5).roll_ms == 604_800_000
    assert TopicConfig().segment_size_limit == 1_073_741_824
    assert TopicConfig(internal_segment_bytes=14).segment_size_limit == 14
    assert TopicConfig().message_timestamp_before_max_ms == INT64_MAX


@pytest.mark.parametrize(
    ("word", "codec", "level"),
    [
        ("producer", None, None),
        ("uncompressed", Codec.NONE, None),
        ("gzip", Codec.GZIP, 2),
        ("snappy", Codec.SNAPPY, None),
        ("lz4", Codec.LZ4, 3),
        ("zstd", Codec.ZSTD, 4),
    ],
)
def test_compression_type_decides_the_codec_and_its_level(
    word: str, codec: Codec | None, level: int | None
) -> None:
    levels = {"gzip": "2", "lz4": "3", "zstd": "4"}
    given = {f"compression.{name}.level": text for name, text in levels.items()}
    config, _ = parse({"compression.type": word, **given})
    assert config.compression_type.target_codec == codec
    assert codec is None or config.compression_level(codec) == level


def test_note_prints_with_the_name_that_was_written() -> None:
    _, notes = parse({"log.roll.ms": "5"})
    assert str(notes[0]) == "log.roll.ms: used as segment.ms=5"


def test_names_for_brokers_are_the_keys_own() -> None:
    given = {"log.retention.hours": "3", "new.in.kafka": "x", "compression.type": "later"}
    found, notes = plain_names(given)
    assert found == {
        "retention.ms": "10800000",
        "new.in.kafka": "x",
        "compression.type": "later",
    }
    assert [str(note) for note in notes] == ["log.retention.hours: used as retention.ms=10800000"]
    assert plain_names({"retention.ms": "what brokers say"}) == (
        {"retention.ms": "what brokers say"},
        [],
    )


def test_a_keys_own_name_wins_for_brokers_too() -> None:
    found, notes = plain_names({"log.retention.hours": "3", "retention.ms": "5"})
    assert found == {"retention.ms": "5"}
    assert [note.kind for note in notes] == [NoteKind.SHADOWED]
    with pytest.raises(ConfigError, match=r"log\.retention\.hours"):
        plain_names({"log.retention.hours": "long"})
