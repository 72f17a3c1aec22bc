"""The file in which older versions kept users and rules: round trip and damage."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.faults import seeded_env
from tests.worlds.directories.older_files import encode_security

from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.storage.security_file import (
    SECURITY_FILE,
    KeptCredential,
    SecurityState,
    decode_security,
    read_security,
)

CREDENTIALS = st.builds(
    KeptCredential, st.integers(1, 16384), st.binary(), st.binary(), st.binary()
)
NUMBERS = st.integers(0, 127)
STATES = st.builds(
    SecurityState,
    st.dictionaries(st.tuples(st.text(), st.sampled_from([1, 2])), CREDENTIALS, max_size=5),
    st.frozensets(
        st.tuples(NUMBERS, st.text(), NUMBERS, st.text(), st.text(), NUMBERS, NUMBERS), max_size=5
    ),
)


@given(STATES)
def test_what_is_written_is_read(state: SecurityState) -> None:
    assert decode_security(encode_security(state)) == state


@given(state=STATES, data=st.data())
def test_damage_is_found_or_changes_a_value_and_never_anything_else(
    state: SecurityState, data: st.DataObject
) -> None:
    """Cut anywhere it is never read; the last byte is a line end, which says nothing."""
    text = encode_security(state)
    with pytest.raises(CorruptFile):
        decode_security(text[: data.draw(st.integers(0, len(text) - 2))])


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"{}",
        b'{"version": 0, "scram": {}, "acls": []}',
        b'{"version": 1, "scram": [], "acls": []}',
        b'{"version": 1, "scram": {"a": {"3": [1, "", "", ""]}}, "acls": []}',
        b'{"version": 1, "scram": {"a": {"1": [1, "", ""]}}, "acls": []}',
        b'{"version": 1, "scram": {"a": {"1": [1, "", "", "zz"]}}, "acls": []}',
        b'{"version": 1, "scram": {"a": {"1": ["1", "", "", ""]}}, "acls": []}',
        b'{"version": 1, "scram": {}, "acls": [[2, "t", 3, "p", "h", 3]]}',
        b'{"version": 1, "scram": {}, "acls": [[2, "t", 3, "p", "h", 3, true]]}',
        b'{"version": 1, "scram": {}, "acls": [[2, "t", 3, "p", "h", 3, 1000]]}',
        b"\xff" * 40,
        b"[" * 100_000,
    ],
)
def test_what_is_no_such_file(text: bytes) -> None:
    with pytest.raises(CorruptFile):
        decode_security(text)


def test_damage_names_the_file_and_nothing_in_it() -> None:
    env = seeded_env(7)
    env.files.make_dirs("/data")
    file = env.files.open(f"/data/{SECURITY_FILE}", create=True)
    file.pwrite(b'{"version": 1, "scram": {"secret": 3}}', 0)
    with pytest.raises(CorruptFile) as caught:
        read_security(env.files, "/data")
    assert SECURITY_FILE in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_later_release_wrote_it() -> None:
    with pytest.raises(UnsupportedVersion):
        decode_security(b'{"version": 2}')
