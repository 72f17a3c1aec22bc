"""Tokens: keys and algorithms, required claims, and refused tokens."""

import json
from collections.abc import Mapping, Sequence
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import examples
from tests.worlds.brokers.signing import EcKey, RsaKey, Secret, key_set, pack, token

from tidelog.config.broker import TOKEN_ALGORITHMS
from tidelog.server.security.bearer_tokens import (
    KEYS_MAX,
    PublicKey,
    TokenRules,
    check_token,
    read_keys,
    unpack,
)
from tidelog.server.security.sasl import AuthenticatedUser, BearerExchange, LoginFailed

NOW_S: Final = 1_700_000_000
CLAIMS: Final[Mapping[str, object]] = {
    "sub": "alice",
    "iss": "https://issuer.example",
    "aud": "kafka",
    "iat": NOW_S - 10,
    "exp": NOW_S + 600,
}
RSA: Final = RsaKey("r")
CURVES: Final = {name: EcKey(name, name) for name in ("ES256", "ES384", "ES512")}
SIGNERS: Final[dict[str, RsaKey | EcKey]] = {**dict.fromkeys(TOKEN_ALGORITHMS, RSA), **CURVES}
ALL: Final = key_set(RSA.shown(), *(key.shown() for key in CURVES.values()))
RULES: Final = TokenRules(algorithms=frozenset(TOKEN_ALGORITHMS))


def check(
    made: str, rules: TokenRules = RULES, keys: bytes = ALL, now_s: float = NOW_S
) -> AuthenticatedUser:
    """Check a token with these rules and keys; return the user and when the login expires."""
    found = read_keys(keys)

    def find(key_id: str | None) -> Sequence[PublicKey]:
        return [key for key in found if key_id is None or key.key_id == key_id]

    return check_token(made, find, rules, int(now_s * 1000))


@pytest.mark.parametrize("algorithm", TOKEN_ALGORITHMS)
def test_each_algorithm_is_accepted_if_allowed(algorithm: str) -> None:
    made = token(SIGNERS[algorithm], algorithm, CLAIMS)
    assert check(made) == AuthenticatedUser("alice", (NOW_S + 600) * 1000)
    other = TokenRules(algorithms=frozenset(TOKEN_ALGORITHMS) - {algorithm})
    with pytest.raises(LoginFailed, match="not allowed"):
        check(made, other)


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "NONE", "HS256", "HS512", "rs256", "", "EdDSA"]
)
def test_insecure_algorithms_are_refused_even_if_allowed(algorithm: str) -> None:
    """Unsigned tokens, and HMAC with the public key as its secret, are never accepted."""
    public = json.dumps(RSA.shown()).encode()
    made = token(Secret("r", public), "HS256", CLAIMS, header={"alg": algorithm})
    with pytest.raises(LoginFailed, match="not allowed"):
        check(made)
    # The algorithm is refused even if the rules allow it.
    with pytest.raises(LoginFailed):
        check(made, TokenRules(algorithms=frozenset({*TOKEN_ALGORITHMS, algorithm})))


def test_a_key_is_not_used_for_another_algorithm() -> None:
    for algorithm in TOKEN_ALGORITHMS:
        signer = SIGNERS[algorithm]
        for other in TOKEN_ALGORITHMS:
            if other != algorithm:
                with pytest.raises(LoginFailed, match="no signature of a trusted key"):
                    check(token(signer, algorithm, CLAIMS, header={"alg": other}))
    only = key_set(RSA.shown(alg="PS256"))
    assert check(token(RSA, "PS256", CLAIMS), keys=only).user == "alice"
    with pytest.raises(LoginFailed, match="no signature of a trusted key"):
        check(token(RSA, "RS256", CLAIMS), keys=only)


def test_all_keys_of_a_name_and_keys_without_a_name_are_tried() -> None:
    stranger, unnamed = RsaKey("r"), RsaKey(None)
    with pytest.raises(LoginFailed, match="no signature of a trusted key"):
        check(token(stranger, "RS256", CLAIMS))
    with pytest.raises(LoginFailed, match="no signature of a trusted key"):
        check(token(RSA, "RS256", CLAIMS, header={"kid": "other"}))
    assert check(token(RSA, "RS256", CLAIMS), keys=key_set(stranger.shown(), RSA.shown())).user
    assert check(token(unnamed, "RS256", CLAIMS), keys=key_set(RSA.shown(), unnamed.shown())).user


@pytest.mark.parametrize(
    ("claims", "told"),
    [
        ({"exp": NOW_S - 30}, "expired"),
        ({"exp": None}, "`exp`"),
        ({"exp": True}, "`exp`"),
        ({"exp": "1800000000"}, "`exp`"),
        ({"exp": 1e300}, "`exp`"),
        ({"exp": -1}, "`exp`"),
        ({"iat": None}, "`iat`"),
        ({"iat": "1700000000"}, "`iat`"),
        ({"scope": ""}, "scope"),
        ({"scope": " "}, "scope"),
        ({"scope": ["a", "b", "a"]}, "scope"),
        ({"scope": ["a", " a "]}, "scope"),
        ({"scope": ["a", ""]}, "scope"),
        ({"scope": ["a", 7]}, "scope"),
        ({"nbf": NOW_S + 31}, "is not valid yet"),
        ({"sub": ""}, "without a name"),
        ({"sub": " "}, "without a name"),
        ({"sub": 7}, "without a name"),
        ({"sub": None}, "without a name"),
        ({"sub": "x" * 1025}, "without a name"),
        ({"sub": "alice\ud800"}, "without a name"),
        ({"iss": "https://other.example"}, "another issuer"),
        ({"iss": None}, "another issuer"),
        ({"aud": "other"}, "another audience"),
        ({"aud": []}, "another audience"),
        ({"aud": [["kafka"]]}, "another audience"),
        ({"aud": None}, "another audience"),
    ],
)
def test_a_token_needs_valid_claims(claims: Mapping[str, object], told: str) -> None:
    rules = TokenRules(
        algorithms=frozenset(TOKEN_ALGORITHMS),
        audiences=frozenset({"kafka", "streams"}),
        issuer="https://issuer.example",
    )
    assert check(token(RSA, "RS256", CLAIMS), rules).user
    with pytest.raises(LoginFailed, match=told):
        check(token(RSA, "RS256", {**CLAIMS, **claims}), rules)


def test_parts_of_a_second_do_not_count() -> None:
    made = token(RSA, "RS256", {**CLAIMS, "exp": NOW_S + 600.9})
    assert check(made).expires_ms == (NOW_S + 600) * 1000


def test_unusual_but_valid_claims_are_accepted() -> None:
    assert check(token(RSA, "RS256", {**CLAIMS, "exp": NOW_S - 29, "iat": NOW_S + 3600})).user
    for scope in ("logs", ["a", "b"], [], 7, None):
        assert check(token(RSA, "RS256", {**CLAIMS, "scope": scope})).user
    assert check(token(RSA, "RS256", {**CLAIMS, "sub": " alice\n"})).user == "alice"
    assert check(token(RSA, "RS256", {**CLAIMS, "aud": ["x", "kafka"], "nbf": NOW_S})).user
    by_mail = TokenRules(algorithms=frozenset(TOKEN_ALGORITHMS), user_claim="email")
    assert check(token(RSA, "RS256", {**CLAIMS, "email": "a@b"}), by_mail).user == "a@b"


@pytest.mark.parametrize("header", [{"crit": ["b64"], "b64": False}, {"kid": 7}, {"kid": ["r"]}])
def test_headers_that_ask_for_more(header: dict[str, object]) -> None:
    with pytest.raises(LoginFailed, match="needs an unknown extension"):
        check(token(RSA, "RS256", CLAIMS, header=header))


GOOD: Final = token(RSA, "RS256", CLAIMS)


@examples(300)
@given(data=st.data())
def test_no_changed_token_gets_in(data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(GOOD) - 1))
    letter = data.draw(st.characters(max_codepoint=300).filter(lambda c: c != GOOD[place]))
    with pytest.raises(LoginFailed):
        check(GOOD[:place] + letter + GOOD[place + 1 :])


@given(st.text(max_size=200))
def test_no_text_gets_in(text: str) -> None:
    with pytest.raises(LoginFailed):
        check(text)


@pytest.mark.parametrize("number", range(4))
def test_parts_that_are_missing_or_too_many(number: int) -> None:
    head, body, signature = GOOD.split(".")
    bad = (f"{head}.{body}", f"{GOOD}.", f"{head}.{body}.", f"{head}..{signature}")[number]
    with pytest.raises(LoginFailed):
        check(bad)


def test_a_token_with_a_repeated_name_is_refused() -> None:
    body = ".".join(
        (
            pack(b'{"alg":"RS256","kid":"r"}'),
            pack(b'{"sub":"alice","sub":"boss","iat":1,"exp":1800000000}'),
        )
    )
    with pytest.raises(LoginFailed, match="not a JWT"):
        check(f"{body}.{pack(RSA.sign('RS256', body.encode()))}")


@pytest.mark.parametrize(
    "keys",
    [
        b"",
        b"[]",
        b"{}",
        b'{"keys": {}}',
        b'{"keys": []}',
        b'{"keys": [7, null, {}]}',
        key_set({"kty": "oct", "k": "c2VjcmV0", "kid": "r"}),
        key_set(RSA.shown(use="enc")),
        key_set(RSA.shown(key_ops=["encrypt"])),
        key_set(RSA.shown(n="AQ")),
        key_set(RSA.shown(e="!")),
        key_set(RSA.shown(n=7)),
        key_set(RSA.shown(n=str(RSA.shown()["n"]) + "==")),
        key_set(RSA.shown(e=pack(((1 << 32) + 1).to_bytes(5, "big")))),
        key_set(RsaKey("small", 1024).shown()),
        key_set(CURVES["ES256"].shown(crv="P-384")),
        key_set(CURVES["ES256"].shown(x="AQ")),
        key_set({"kty": "EC"}),
        key_set(*[RSA.shown()] * (KEYS_MAX + 1)),
        b"[" * 100_000,
    ],
)
def test_sets_without_a_key_that_counts(keys: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_keys(keys)


@pytest.mark.parametrize("algorithm", ["RS256", "ES256", "ES512"])
def test_numbers_of_a_key_may_have_more_or_fewer_leading_zeros(
    algorithm: str,
) -> None:
    signer = SIGNERS[algorithm]
    shown = signer.shown()
    names = ("n", "e") if algorithm == "RS256" else ("x", "y")
    numbers = [unpack(str(shown[name])).lstrip(b"\0") for name in names]
    for zeros in (b"", b"\0"):
        given = {name: pack(zeros + each) for name, each in zip(names, numbers, strict=True)}
        made = token(signer, algorithm, CLAIMS)
        assert check(made, keys=key_set(signer.shown(**given))).user == "alice"


def test_a_private_key_counts_as_its_public_half() -> None:
    for signer, algorithm in ((RSA, "RS256"), (CURVES["ES256"], "ES256")):
        keys = key_set(signer.shown(d="AQ", p="AQ"))
        assert check(token(signer, algorithm, CLAIMS), keys=keys).user == "alice"


def test_keys_that_do_not_count_are_skipped() -> None:
    keys = key_set({"kty": "OKP", "crv": "Ed25519", "x": "AA"}, RSA.shown(n="AQ"), RSA.shown())
    assert [key.key_id for key in read_keys(keys)] == ["r"]


def test_a_bad_token_is_refused_without_a_reason() -> None:
    exchange = BearerExchange(check)
    bad = token(RsaKey("r"), "RS256", CLAIMS)
    answer = exchange.step(f"n,,\x01auth=Bearer {bad}\x01\x01".encode())
    assert json.loads(answer) == {"status": "invalid_token"}
    assert exchange.login is None
    with pytest.raises(LoginFailed, match="no signature of a trusted key") as ended:
        exchange.step(b"\x01")
    assert ended.value.client_message == answer.decode()


def test_another_message_after_a_bad_token_gets_no_message_of_its_own() -> None:
    exchange = BearerExchange(check)
    exchange.step(b"n,,\x01auth=Bearer nonsense\x01\x01")
    with pytest.raises(LoginFailed) as ended:
        exchange.step(rb"\x01")
    assert ended.value.client_message is None


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"n,,",
        b"n,,\x01\x01",
        b"p=x,,\x01auth=Bearer {}\x01\x01",
        b"y,,\x01auth=Bearer {}\x01\x01",
        b"n,alice,\x01auth=Bearer {}\x01\x01",
        b"n,,\x01auth=Basic {}\x01\x01",
        b"n,,\x01auth=Bearer \x01\x01",
        b"n,,\x01auth=Bearer {}\x01",
        b"n,,\x01auth=Bearer {}\x01auth=Bearer x\x01\x01",
        b"n,a=bob,\x01auth=Bearer {}\x01\x01",
        b"\xff",
    ],
)
def test_messages_that_are_refused(message: bytes) -> None:
    exchange = BearerExchange(check)
    with pytest.raises(LoginFailed):
        exchange.step(message.replace(b"{}", GOOD.encode()))
    assert exchange.login is None


@pytest.mark.parametrize("head", ["n,,", "n,a=alice,"])
def test_valid_messages_are_accepted(head: str) -> None:
    exchange = BearerExchange(check)
    assert exchange.step(f"{head}\x01host=h\x01auth=Bearer {GOOD}\x01\x01".encode()) == b""
    assert exchange.login == AuthenticatedUser("alice", (NOW_S + 600) * 1000)
