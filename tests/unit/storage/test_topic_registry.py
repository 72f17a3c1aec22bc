"""The registry of a directory's topics: its file, foreign directories, and refused changes."""

import json
import uuid
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults import DamageFileSystem, Fault, FaultKind, reopen

from tidelog.config import NoteKind, TopicConfig
from tidelog.errors import (
    ConfigError,
    CorruptFile,
    InvalidPartitions,
    InvalidTopic,
    TidelogError,
    TopicExists,
    UnknownTopic,
    UnsupportedVersion,
)
from tidelog.storage.directory.topic_registry import (
    PARTITION_COUNT_LIMIT,
    CreatedTopic,
    NewTopic,
    TopicEntry,
    TopicInfo,
    TopicRegistry,
    TopicsText,
    absent_numbers,
    decode_topics,
    encode_topics,
    find_strays,
    find_topics,
    read_topics,
)
from tidelog.storage.files import TOPICS_FILE, decode_topic_id, encode_topic_id, write_atomically
from tidelog.storage.text_files import read_partition_metadata, write_partition_metadata
from tidelog.types import TopicPartition

ID_A = uuid.UUID("11111111-2222-4333-8444-555555555555")
ID_B = uuid.UUID("aaaaaaaa-bbbb-4ccc-8ddd-eeeeeeeeeeee")
ROOT = "/data"
PATH = f"{ROOT}/{TOPICS_FILE}"


@pytest.fixture
def disk() -> DamageFileSystem:
    files = DamageFileSystem()
    files.make_dirs(ROOT)
    return files


def add_partition(disk: DamageFileSystem, name: str, topic_id: uuid.UUID | None = None) -> None:
    disk.make_dirs(f"{ROOT}/{name}")
    if topic_id is not None:
        write_partition_metadata(disk, f"{ROOT}/{name}", topic_id)


def write_text(disk: DamageFileSystem, text: str) -> None:
    write_atomically(disk, PATH, text.encode())


def create(
    registry: TopicRegistry,
    name: str,
    partitions: int,
    settings: Mapping[str, str],
    *,
    source: Random,
    topic_id: uuid.UUID | None = None,
) -> CreatedTopic:
    """Create one topic; raise its error if it is refused."""
    (made,) = registry.create([NewTopic(name, partitions, settings, topic_id)], source=source)
    if isinstance(made, TidelogError | OSError):
        raise made
    return made


def grow(registry: TopicRegistry, name: str, partitions: int) -> TopicInfo:
    """Add partitions to one topic; raise its error if that is refused."""
    (grown,) = registry.grow({name: partitions})
    if isinstance(grown, TidelogError | OSError):
        raise grown
    return grown


def entry_text(**changes: object) -> str:
    """Return the text of a registry file with one topic whose fields are replaced by `changes`."""
    entry = {"id": encode_topic_id(ID_A), "partitions": 2, "config": {}} | changes
    return json.dumps({"version": 1, "topics": {"flights": entry}})


# --- the file


def test_text_of_the_file() -> None:
    entries = {
        "b": TopicEntry(ID_B, 1, {}),
        "a": TopicEntry(ID_A, 4, {"retention.ms": "-1"}),
    }
    content = {
        "version": 1,
        "topics": {
            "a": {"id": encode_topic_id(ID_A), "partitions": 4, "config": {"retention.ms": "-1"}},
            "b": {"id": encode_topic_id(ID_B), "partitions": 1, "config": {}},
        },
    }
    assert encode_topics(entries).decode() == json.dumps(content, indent=1) + "\n"
    empty = {"version": 1, "topics": {}}
    assert encode_topics({}).decode() == json.dumps(empty, indent=1) + "\n"


@given(
    st.dictionaries(
        st.text("abcXYZ019._-", min_size=1, max_size=20).filter(lambda n: n not in (".", "..")),
        st.builds(
            TopicEntry,
            st.uuids(),
            st.integers(1, PARTITION_COUNT_LIMIT),
            st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=3),
        ),
        max_size=5,
    )
)
def test_a_file_is_read_as_it_was_written(entries: dict[str, TopicEntry]) -> None:
    assert decode_topics(encode_topics(entries)) == TopicsText(entries)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("\xff", "version"),
        ("[" * 100_000, "not JSON"),
        ("[]", "the file is list"),
        ("{}", "version None"),
        ('{"version": true, "topics": {}}', "version True"),
        ('{"version": 0, "topics": {}}', "version 0"),
        ('{"version": "1", "topics": {}}', "version '1'"),
        ('{"version": 1}', "`topics` is NoneType"),
        ('{"version": 1, "topics": {"a": 1}}', "topic 'a' is int"),
        ('{"version": 1, "topics": {"a/b": {"config": {}}}}', "a/b"),
        (entry_text(id=None), "`id` is None"),
        (entry_text(id="short"), "topic id 'short'"),
        (entry_text(partitions=0), "`partitions` is 0"),
        (entry_text(partitions=True), "`partitions` is True"),
        (entry_text(partitions=PARTITION_COUNT_LIMIT + 1), "`partitions` is 100001"),
        (entry_text(partitions="2"), "`partitions` is '2'"),
        (entry_text(config=None), "`config` of topic"),
        (entry_text(config={"retention.ms": 1}), "is not a text"),
    ],
)
def test_damaged_file_is_refused_with_its_path(
    disk: DamageFileSystem, text: str, reason: str
) -> None:
    if text == "\xff":
        write_atomically(disk, PATH, b"\xff")
        reason = "not UTF-8"
    else:
        write_text(disk, text)
    with pytest.raises(CorruptFile) as caught:
        read_topics(disk, ROOT)
    assert reason in str(caught.value)
    assert caught.value.path == PATH


def test_file_of_a_later_release_is_refused_as_such(disk: DamageFileSystem) -> None:
    write_text(disk, '{"version": 2, "topics": {}}')
    with pytest.raises(UnsupportedVersion):
        find_topics(disk, ROOT)


@pytest.mark.parametrize(
    "config", [{"no.such.key": "1"}, {"retention.ms": "x"}, {"min.compaction.lag.ms": str(2**63)}]
)
def test_settings_that_cannot_be_read_are_damage(
    disk: DamageFileSystem, config: dict[str, str]
) -> None:
    write_text(disk, entry_text(config=config))
    with pytest.raises(CorruptFile, match=r"tidelog-topics\.json: topic flights: "):
        find_topics(disk, ROOT)


def test_no_file_and_no_directories_are_no_topics(disk: DamageFileSystem) -> None:
    assert read_topics(disk, ROOT) == TopicsText()
    assert find_topics(disk, ROOT) == ({}, [])


# --- foreign directories


def test_directory_that_the_file_does_not_know_is_a_foreign_topic(disk: DamageFileSystem) -> None:
    add_partition(disk, "kafka-0", ID_B)
    add_partition(disk, "kafka-2", ID_B)
    add_partition(disk, "kafka-1.0123456789abcdef0123456789abcdef-delete", ID_B)
    disk.make_dirs(f"{ROOT}/not a partition")
    topics, notes = find_topics(disk, ROOT)
    (info,) = topics.values()
    assert (info.name, info.topic_id, info.partitions, info.present) == ("kafka", ID_B, 3, (0, 2))
    assert info.foreign
    assert info.config == TopicConfig()
    assert notes == []


def test_foreign_topic_without_metadata_has_no_id(disk: DamageFileSystem) -> None:
    add_partition(disk, "old-name-0")
    info = find_topics(disk, ROOT)[0]["old-name"]
    assert info.topic_id is None


def test_a_topic_without_an_id_gets_one_if_the_directory_is_opened_for_writing(
    disk: DamageFileSystem,
) -> None:
    for partition in ("old-0", "old-2", "other-0", "damaged-0"):
        add_partition(disk, partition)
    add_partition(disk, "half-0", ID_A)
    add_partition(disk, "half-1")
    write_atomically(disk, f"{ROOT}/damaged-0/partition.metadata", b"nonsense")
    given = TopicRegistry(disk, ROOT, source=Random(1)).topics
    found = find_topics(disk, ROOT)[0]
    assert {name: info.topic_id for name, info in found.items()} == {
        name: info.topic_id for name, info in given.items()
    }
    ids = [given[name].topic_id for name in ("old", "other", "half")]
    assert None not in ids
    assert len(set(ids)) == 3
    assert ids[2] == ID_A
    assert given["damaged"].topic_id is None, "what it was can be read off the file by a person"
    assert given["old"].foreign, "its settings are as unknown as before"
    ids_of_old = {
        read_partition_metadata(disk, f"{ROOT}/old-{number}") for number in given["old"].present
    }
    assert ids_of_old == {given["old"].topic_id}


def test_damaged_metadata_is_reported_and_does_not_hide_the_topic(disk: DamageFileSystem) -> None:
    add_partition(disk, "a-0")
    write_atomically(disk, f"{ROOT}/a-0/partition.metadata", b"nonsense")
    topics, notes = find_topics(disk, ROOT)
    assert topics["a"].topic_id is None
    assert len(notes) == 1
    assert f"{ROOT}/a-0/partition.metadata" in notes[0]


def test_registered_topic_keeps_its_settings_beside_its_directories(
    disk: DamageFileSystem,
) -> None:
    write_text(disk, entry_text(config={"retention.ms": "-1"}, partitions=3))
    add_partition(disk, "flights-1", ID_A)
    info = find_topics(disk, ROOT)[0]["flights"]
    assert (info.topic_id, info.partitions, info.present) == (ID_A, 3, (1,))
    assert info.config.retention_ms == -1
    assert info.given == {"retention.ms": "-1"}
    assert not info.foreign


def test_partitions_that_kafka_added_count(disk: DamageFileSystem) -> None:
    write_text(disk, entry_text(partitions=1))
    for number in (4, 3, 1):
        add_partition(disk, f"flights-{number}", ID_A)
    assert find_topics(disk, ROOT)[0]["flights"].present == (1,)
    assert find_strays(disk, ROOT) == [
        TopicPartition("flights", 3),
        TopicPartition("flights", 4),
    ]
    add_partition(disk, "flights-2", ID_A)
    info = find_topics(disk, ROOT)[0]["flights"]
    assert (info.partitions, info.present) == (5, (1, 2, 3, 4))
    assert find_strays(disk, ROOT) == []


def test_topic_id_of_the_directories_wins_and_is_reported(disk: DamageFileSystem) -> None:
    write_text(disk, entry_text())
    add_partition(disk, "flights-0", ID_B)
    topics, notes = find_topics(disk, ROOT)
    assert topics["flights"].topic_id == ID_B
    assert len(notes) == 1
    assert encode_topic_id(ID_A) in notes[0]


def test_partitions_of_different_ids_are_reported(disk: DamageFileSystem) -> None:
    write_text(disk, entry_text())
    add_partition(disk, "flights-0", ID_B)
    add_partition(disk, "flights-1", ID_A)
    topics, notes = find_topics(disk, ROOT)
    assert topics["flights"].topic_id == ID_A
    assert notes == ["topic flights: its partitions have 2 different topic ids"]


# --- changes


def test_a_created_topic_exists_after_reopening(disk: DamageFileSystem) -> None:
    registry = TopicRegistry(disk, ROOT)
    given_settings = {"log.retention.hours": "2", "cleanup.policy": "compact"}
    info, notes = create(registry, "flights", 4, given_settings, source=Random(1))
    assert [note.kind for note in notes] == [NoteKind.RENAMED]
    assert info.given == {"cleanup.policy": "compact", "retention.ms": "7200000"}
    again = TopicRegistry(disk, ROOT).get("flights")
    assert again == info
    assert again.config.retention_ms == 7_200_000
    assert again.config.is_compacted


def test_every_topic_gets_its_own_id_by_default(disk: DamageFileSystem) -> None:
    registry, source = TopicRegistry(disk, ROOT), Random(1)
    ids = {create(registry, f"t{n}", 1, {}, source=source)[0].topic_id for n in range(20)}
    assert len(ids) == 20
    assert create(registry, "own", 1, {}, source=source, topic_id=ID_A)[0].topic_id == ID_A
    assert decode_topic_id(encode_topic_id(ID_A)) == ID_A


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ü", "x" * 250])
def test_bad_names_are_refused(disk: DamageFileSystem, name: str) -> None:
    with pytest.raises(InvalidTopic):
        create(TopicRegistry(disk, ROOT), name, 1, {}, source=Random(1))


def test_an_existing_name_is_refused_whichever_program_created_it(disk: DamageFileSystem) -> None:
    add_partition(disk, "kafka-0", ID_B)
    registry = TopicRegistry(disk, ROOT)
    create(registry, "own", 1, {}, source=Random(1))
    for name in ("own", "kafka"):
        with pytest.raises(TopicExists):
            create(registry, name, 1, {}, source=Random(1))


@pytest.mark.parametrize("twin", ["a_b", "a.b"])
def test_names_that_differ_in_dot_and_underscore_only_are_refused(
    disk: DamageFileSystem, twin: str
) -> None:
    registry = TopicRegistry(disk, ROOT)
    create(registry, "a_b" if twin == "a.b" else "a.b", 1, {}, source=Random(1))
    with pytest.raises(InvalidTopic, match="differs from"):
        create(registry, twin, 1, {}, source=Random(1))


def test_topics_of_one_call_are_compared_with_each_other(disk: DamageFileSystem) -> None:
    registry = TopicRegistry(disk, ROOT)
    new = [NewTopic(name) for name in ("a.b", "a_b", "a.b", "a..b", "a._b")]
    outcomes = registry.create(new, source=Random(1))
    errors = [each if isinstance(each, Exception) else None for each in outcomes]
    assert list(map(type, errors)) == [
        type(None),
        InvalidTopic,
        TopicExists,
        type(None),
        InvalidTopic,
    ]
    assert "a_b differs from the existing topic a.b only" in str(errors[1])
    assert list(registry.topics) == ["a..b", "a.b"]


def test_the_name_of_a_refused_topic_stays_free_in_its_call(disk: DamageFileSystem) -> None:
    registry = TopicRegistry(disk, ROOT)
    new = [NewTopic("a.b", 0), NewTopic("a.b", 1, {"retention.ms": "soon"}), NewTopic("a_b")]
    registry.create(new, source=Random(1))
    assert list(registry.topics) == ["a_b"]


@pytest.mark.parametrize("count", [0, -1, PARTITION_COUNT_LIMIT + 1])
def test_bad_partition_counts_are_refused(disk: DamageFileSystem, count: int) -> None:
    with pytest.raises(InvalidPartitions):
        create(TopicRegistry(disk, ROOT), "a", count, {}, source=Random(1))


def test_bad_settings_leave_no_topic(disk: DamageFileSystem) -> None:
    registry = TopicRegistry(disk, ROOT)
    for settings in (
        {"retention.ms": "soon"},
        {"min.compaction.lag.ms": "2", "max.compaction.lag.ms": "1"},
    ):
        with pytest.raises(ConfigError):
            create(registry, "a", 1, settings, source=Random(1))
    assert registry.topics == {}
    assert not disk.exists(PATH)


def test_unknown_topic_names_the_nearest(disk: DamageFileSystem) -> None:
    registry = TopicRegistry(disk, ROOT)
    create(registry, "flights", 1, {}, source=Random(1))
    with pytest.raises(UnknownTopic, match=r"no topic 'flihgts'; did you mean flights\?"):
        registry.get("flihgts")
    with pytest.raises(UnknownTopic, match=r"^no topic 'xyzzy'; there are: flights$"):
        registry.hide(["xyzzy"])


def test_settings_are_changed_one_by_one_and_reset_to_the_default(disk: DamageFileSystem) -> None:
    registry = TopicRegistry(disk, ROOT)
    create(registry, "a", 1, {"retention.ms": "5", "segment.ms": "7"}, source=Random(1))
    info, notes = registry.alter(
        "a", {"log.retention.ms": "6", "segment.ms": None, "flush.ms": "9"}, source=Random(1)
    )
    assert info.given == {"retention.ms": "6", "flush.ms": "9"}
    assert [note.given for note in notes] == ["log.retention.ms"]
    assert TopicRegistry(disk, ROOT).get("a").config == info.config
    info, _ = registry.alter("a", {"log.retention.hours": None}, source=Random(1))
    assert info.given == {"flush.ms": "9"}
    assert info.config.retention_ms == 604_800_000


def test_a_change_that_contradicts_other_settings_changes_nothing(disk: DamageFileSystem) -> None:
    registry = TopicRegistry(disk, ROOT)
    before, _ = create(registry, "a", 1, {"max.compaction.lag.ms": "5"}, source=Random(1))
    for changes in ({"min.compaction.lag.ms": "6"}, {"no.such.key": None}):
        with pytest.raises(ConfigError):
            registry.alter("a", changes, source=Random(1))
    assert registry.get("a") == before
    assert TopicRegistry(disk, ROOT).get("a") == before


def test_altered_foreign_topic_becomes_ours_with_its_id(disk: DamageFileSystem) -> None:
    add_partition(disk, "kafka-1", ID_B)
    registry = TopicRegistry(disk, ROOT)
    create(registry, "own", 1, {}, source=Random(1))
    assert list(read_topics(disk, ROOT).topics) == ["own"], "foreign topics stay out of the file"
    info, _ = registry.alter("kafka", {"retention.ms": "-1"}, source=Random(1))
    assert not info.foreign
    again = TopicRegistry(disk, ROOT).get("kafka")
    assert (again.topic_id, again.partitions, again.foreign) == (ID_B, 2, False)


def test_partitions_only_grow(disk: DamageFileSystem) -> None:
    registry = TopicRegistry(disk, ROOT)
    create(registry, "a", 2, {}, source=Random(1))
    assert grow(registry, "a", 5).partitions == 5
    assert TopicRegistry(disk, ROOT).get("a").partitions == 5
    for count in (5, 4, 0, PARTITION_COUNT_LIMIT + 1):
        with pytest.raises(InvalidPartitions):
            grow(registry, "a", count)


def test_a_deleted_topic_is_not_listed(disk: DamageFileSystem) -> None:
    registry = TopicRegistry(disk, ROOT)
    create(registry, "a", 1, {}, source=Random(1))
    create(registry, "b", 1, {}, source=Random(2))
    registry.delete_hidden(registry.hide(["a"]))
    assert list(registry.topics) == ["b"]
    assert list(TopicRegistry(disk, ROOT).topics) == ["b"]


# --- crashes and failures


def test_a_crash_leaves_the_old_or_new_topics_and_all_acknowledged_ones(
    disk: DamageFileSystem,
) -> None:
    disk.settle()
    registry = TopicRegistry(disk, ROOT)
    acknowledged = []
    for name in ("a", "b", "c"):
        create(registry, name, 1, {}, source=Random(1))
        acknowledged.append((len(disk.journal), name))
    seen = set()
    for state in disk.crash_states(range(300)):
        topics = set(read_topics(reopen(state), ROOT).topics)
        assert topics in [set("abc"[:count]) for count in range(4)], str(state)
        durable = {name for calls, name in acknowledged if calls <= state.prefix}
        assert topics >= durable, str(state)
        seen.add(len(topics))
    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("kind", [FaultKind.EIO, FaultKind.NO_SPACE])
def test_failed_call_leaves_the_old_or_the_new_topics(
    disk: DamageFileSystem, kind: FaultKind
) -> None:
    registry = TopicRegistry(disk, ROOT)
    create(registry, "a", 1, {}, source=Random(1))
    failed = 0
    for call in range(20):
        disk.writes.fault = Fault(disk.calls + call, kind)
        try:
            create(registry, f"b{call}", 1, {}, source=Random(1))
        except OSError:
            failed += 1
            assert f"b{call}" not in registry.topics
        assert set(read_topics(disk, ROOT).topics) ^ set(registry.topics) <= {f"b{call}"}
    assert failed >= 4, "open, write, sync, rename and sync_dir can each fail"


@pytest.mark.parametrize("topic_id", [None, ID_B])
def test_a_stray_directory_is_neither_counted_nor_listed_by_the_next_write(
    disk: DamageFileSystem, topic_id: uuid.UUID | None
) -> None:
    write_text(disk, entry_text(partitions=3))
    for number in (0, 1, 2):
        add_partition(disk, f"flights-{number}", ID_A)
    add_partition(disk, "flights-5", topic_id)
    topics, notes = find_topics(disk, ROOT)
    info = topics["flights"]
    assert (info.partitions, info.present, info.topic_id) == (3, (0, 1, 2), ID_A)
    assert absent_numbers(info) == []
    assert any("flights-5 is ignored: topic flights has 3 partitions" in note for note in notes)
    registry = TopicRegistry(disk, ROOT)
    registry.alter("flights", {"retention.ms": "5"}, source=Random(1))
    assert read_topics(disk, ROOT).topics["flights"].partitions == 3
    assert grow(registry, "flights", 5).partitions == 5
    if topic_id is None:
        assert grow(registry, "flights", 6).partitions == 6
    else:
        with pytest.raises(InvalidPartitions, match="flights-5 is not a partition of"):
            grow(registry, "flights", 6)
    assert disk.exists(f"{ROOT}/flights-5")


def test_a_directory_with_records_and_no_id_is_a_partition(disk: DamageFileSystem) -> None:
    write_text(disk, entry_text(partitions=1))
    add_partition(disk, "flights-0", ID_A)
    add_partition(disk, "flights-1")
    path = f"{ROOT}/flights-1/{0:020d}.log"
    write_atomically(disk, path, b"")
    assert find_topics(disk, ROOT)[0]["flights"].partitions == 1
    write_atomically(disk, path, b"records")
    assert find_topics(disk, ROOT)[0]["flights"].partitions == 2
