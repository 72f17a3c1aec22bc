"""The file of settings: round trip, damage, and a crash at each step."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults import reopen, seeded_env

from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.storage.directory.broker_files import (
    CLUSTER_FILE,
    ClusterState,
    decode_cluster,
    encode_cluster,
    read_cluster,
    settings_of,
    write_cluster,
)

SETTINGS = st.dictionaries(
    st.sampled_from(["", "0", "17"]),
    st.dictionaries(st.text(), st.text(), min_size=1, max_size=3),
    max_size=3,
)
GROUPS = st.dictionaries(
    st.text(min_size=1), st.dictionaries(st.text(), st.text(), min_size=1, max_size=3), max_size=3
)
DEFAULTS = st.none() | st.dictionaries(st.text(), st.text(), max_size=3)
STATES = st.builds(
    ClusterState, quotas=st.just({}), settings=SETTINGS, groups=GROUPS, topic_defaults=DEFAULTS
)


@given(STATES)
def test_a_written_state_is_read_back(state: ClusterState) -> None:
    assert decode_cluster(encode_cluster(state)) == state


@given(state=STATES, data=st.data())
def test_cut_anywhere_it_is_never_read(state: ClusterState, data: st.DataObject) -> None:
    """A file that is cut before its last byte, which is a line end, is refused."""
    text = encode_cluster(state)
    with pytest.raises(CorruptFile):
        decode_cluster(text[: data.draw(st.integers(0, len(text) - 2))])


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"{}",
        b'{"version": 0, "quotas": []}',
        b'{"version": true, "quotas": []}',
        b'{"version": 1, "quotas": {}}',
        b'{"version": 1, "quotas": [], "topic_defaults": []}',
        b'{"version": 1, "quotas": [], "topic_defaults": {"a": 1}}',
        b'{"version": 1, "quotas": [[{"user": "a"}, {"producer_byte_rate": 1}]]}',
        b'{"version": 1, "quotas": [], "settings": []}',
        b'{"version": 1, "quotas": [], "settings": {"x": {"a": "b"}}}',
        b'{"version": 1, "quotas": [], "settings": {"-1": {"a": "b"}}}',
        b'{"version": 1, "quotas": [], "settings": {"1": {}}}',
        b'{"version": 1, "quotas": [], "settings": {"1": {"a": 1}}}',
        b'{"version": 1, "quotas": [], "groups": []}',
        b'{"version": 1, "quotas": [], "groups": {"": {"a": "b"}}}',
        b'{"version": 1, "quotas": [], "groups": {"g": {}}}',
        b'{"version": 1, "quotas": [], "groups": {"g": {"a": null}}}',
        b"\xff" * 40,
        b"[" * 100_000,
    ],
)
def test_an_invalid_cluster_file_is_refused(text: bytes) -> None:
    with pytest.raises(CorruptFile):
        decode_cluster(text)


def test_own_settings_win_over_those_of_all() -> None:
    state = ClusterState(settings={"": {"a": "1", "b": "1"}, "7": {"b": "2"}, "8": {"a": "3"}})
    assert settings_of(state, 7) == {"a": "1", "b": "2"}


def test_a_later_version_is_not_guessed_at() -> None:
    with pytest.raises(UnsupportedVersion):
        decode_cluster(b'{"version": 2}')


def test_a_crash_leaves_the_old_state_or_the_new_one() -> None:
    old = ClusterState(settings={"": {"log.retention.ms": "1"}})
    new = ClusterState(settings={"0": {"log.retention.ms": "2"}})
    env = seeded_env(7)
    env.files.make_dirs("/data")
    env.files.sync_dir("/")
    write_cluster(env.files, "/data", old)
    env.files.settle()
    write_cluster(env.files, "/data", new)
    found = set()
    for state in env.files.crash_states(range(300)):
        after = read_cluster(reopen(state), "/data")
        assert after in (old, new), str(state)
        found.add(after == new)
    assert found == {False, True}
    assert read_cluster(env.files, "/data") == new


def test_damage_names_the_file() -> None:
    env = seeded_env(1)
    env.files.make_dirs("/data")
    file = env.files.open(f"/data/{CLUSTER_FILE}", create=True)
    file.pwrite(b"{", 0)
    with pytest.raises(CorruptFile) as caught:
        read_cluster(env.files, "/data")
    assert CLUSTER_FILE in str(caught.value)
