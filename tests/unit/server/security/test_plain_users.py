"""The file of users and passwords for SASL/PLAIN."""

import hashlib

import pytest

from tidelog.errors import ConfigError
from tidelog.server.security.plain_users import PASSWORD_BYTES_MAX, hashed, read_users

SALT = bytes(16)


def test_users_with_clear_and_hashed_passwords() -> None:
    kept = hashed("other=secret", b"another salt", 5000)
    users = read_users(f"# users\n\n alice = se=cret \nbob={kept}\n", "users", SALT)
    assert users.is_user("alice", "se=cret")
    assert users.is_user("bob", "other=secret")
    for name, password in (("alice", "secret"), ("bob", str(kept)), ("", ""), ("carl", "")):
        assert not users.is_user(name, password)


@pytest.mark.parametrize("name", ["plain", "few", "many", "nobody", ""])
@pytest.mark.parametrize("password", ["wrong", "right"])
def test_each_attempt_costs_the_same_for_any_user(
    name: str, password: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, many = (hashed("right", SALT, count) for count in (100, 50_000))
    users = read_users(f"plain=right\nfew={few}\nmany={many}\n", "users", SALT)
    computed: list[int] = []

    def count(name: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        computed.append(iterations)
        return compute(name, password, salt, iterations)

    compute = hashlib.pbkdf2_hmac
    monkeypatch.setattr(hashlib, "pbkdf2_hmac", count)
    assert users.is_user(name, password) is (password == "right" and name not in {"nobody", ""})
    assert (len(computed), sum(computed)) == (2, 50_001)


def test_a_long_password_is_not_hashed() -> None:
    users = read_users("a=x", "users", SALT)
    assert not users.is_user("a", "x" * (PASSWORD_BYTES_MAX + 1))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("alice", "line 1 is not NAME=PASSWORD"),
        ("\nalice=", "line 2"),
        ("=secret", "line 1"),
        ("a=x\na=y", "line 2: duplicate user"),
        ("a={pbkdf2-sha256}x:y:z", "ITERATIONS:SALT:HASH"),
        ("a={pbkdf2-sha256}1:AAAA", "ITERATIONS:SALT:HASH"),
        ("a={pbkdf2-sha256}1:AAAA:AAAA", "ITERATIONS:SALT:HASH"),
        ("a={pbkdf2-sha256}1:AAAA:$$$$", "ITERATIONS:SALT:HASH"),
        ("a={pbkdf2-sha256}1:AAAA:\u00e4\u00e4\u00e4\u00e4", "ITERATIONS:SALT:HASH"),
        ("a={pbkdf2-sha256}0:AAAA:AAAA", "iterations"),
        ("a={pbkdf2-sha256}999999999999:AAAA:AAAA", "iterations"),
        ("a={pbkdf2-sha256}0000040960:AAAA:AAAA", "iterations"),
    ],
)
def test_lines_that_are_no_users_are_named_and_not_shown(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_users(text, "the file", SALT)
    assert told in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_hash_is_not_printed() -> None:
    assert "digest" not in repr(hashed("x", SALT))
