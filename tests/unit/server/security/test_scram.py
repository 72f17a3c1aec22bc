"""SCRAM: the RFC's example, refused messages, and unknown users that look like known users."""

import base64
import hashlib
import hmac
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import examples

from tidelog.server.security.sasl import (
    ITERATIONS_MIN,
    SHAPES_MAX,
    AuthenticatedUser,
    LoginFailed,
    ScramExchange,
    ScramMechanism,
    Shape,
    credential_of,
    most_common,
    shape_of,
)
from tidelog.storage.directory.broker_files import ScramCredential

SHA_256 = ScramMechanism.SCRAM_SHA_256
SALT = b"salt of a test"


def credential_for_password(
    mechanism: ScramMechanism, password: str, salt: bytes
) -> ScramCredential:
    """Salt and hash a password as clients do, and return the credential."""
    name = mechanism.hash_name
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, ITERATIONS_MIN)
    return credential_of(mechanism, salt, ITERATIONS_MIN, salted)


KEPT = {
    kind: credential_for_password(kind, "pencil", SALT)
    for kind in (SHA_256, ScramMechanism.SCRAM_SHA_512)
}


def server(kind: ScramMechanism = SHA_256, *, nonce: bytes = b"server-nonce") -> ScramExchange:
    """Return the broker's side of a login. The broker knows only the user named `user`."""

    def find(user: str) -> ScramCredential | None:
        return KEPT[kind] if user == "user" else None

    return ScramExchange(kind, find, nonce=nonce, pretender_key=b"secret")


def client_final(
    kind: ScramMechanism,
    first: str,
    answer: bytes,
    password: str,
    binding: str = "n,,",
    nonce: str | None = None,
) -> bytes:
    """Return the second message of an honest client, by RFC 5802, section 3.

    If `nonce` is given, it replaces the server's nonce in the message, and the proof is right for
    it.
    """
    name = kind.hash_name
    said = dict(part.partition("=")[::2] for part in answer.decode().split(","))
    salt, count = base64.b64decode(said["s"]), int(said["i"])
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, count)
    client_key = hmac.digest(salted, b"Client Key", name)
    stored = hashlib.new(name, client_key).digest()
    sent = said["r"] if nonce is None else nonce
    without = f"c={base64.b64encode(binding.encode()).decode()},r={sent}"
    bare = first.removeprefix(binding)
    signature = hmac.digest(stored, f"{bare},{answer.decode()},{without}".encode(), name)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return f"{without},p={base64.b64encode(proof).decode()}".encode()


def test_the_example_of_rfc_7677() -> None:
    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    kept = credential_for_password(SHA_256, "pencil", salt)
    assert kept.iterations == 4096
    nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    signed = (
        f"n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,"
        f"c=biws,r={nonce}"
    ).encode()
    proof = base64.b64decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=")
    mask = hmac.digest(kept.stored_key, signed, "sha256")
    client_key = bytes(a ^ b for a, b in zip(proof, mask, strict=True))
    assert hashlib.sha256(client_key).digest() == kept.stored_key
    server = hmac.digest(kept.server_key, signed, "sha256")
    assert base64.b64encode(server) == b"6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


@pytest.mark.parametrize("kind", KEPT)
@pytest.mark.parametrize("binding", ["n,,", "n,a=user,"])
def test_only_the_right_password_is_accepted(kind: ScramMechanism, binding: str) -> None:
    first = f"{binding}n=user,r=abc"
    found = server(kind)
    answer = found.step(first.encode())
    assert found.step(client_final(kind, first, answer, "pencil", binding)).startswith(b"v=")
    assert found.login == AuthenticatedUser("user")
    found = server(kind)
    answer = found.step(first.encode())
    with pytest.raises(LoginFailed):
        found.step(client_final(kind, first, answer, "Pencil", binding))
    assert found.login is None


def test_an_unknown_user_looks_like_a_known_one() -> None:
    """An unknown user always gets the same salt, and the iteration count of a known user.

    The login then fails with the same error as that of a known user with a wrong password.
    """
    answers = [server().step(b"n,,n=nobody,r=abc") for _ in range(2)]
    assert answers[0] == answers[1]
    other = server().step(b"n,,n=somebody,r=abc")
    assert other != answers[0]
    assert answers[0].endswith(f",i={ITERATIONS_MIN}".encode())
    reasons = set()
    for user, password in (("nobody", "pencil"), ("user", "wrong")):
        found = server()
        first = f"n,,n={user},r=abc"
        with pytest.raises(LoginFailed) as caught:
            found.step(client_final(SHA_256, first, found.step(first.encode()), password))
        reasons.add(str(caught.value))
    assert len(reasons) == 1


def challenge(user: str, shapes: dict[Shape, int]) -> tuple[bytes, int]:
    """Return the salt and the iteration count in the response to a user name."""
    found = ScramExchange(
        SHA_256,
        lambda name: KEPT[SHA_256] if name == "user" else None,
        nonce=b"n",
        pretender_key=b"secret",
        shapes=lambda: shapes,
    )
    said = dict(
        part.partition("=")[::2]
        for part in found.step(b"n,,n=%b,r=a" % user.encode()).decode().split(",")
    )
    return base64.b64decode(said["s"]), int(said["i"])


def test_unknown_users_have_iterations_and_salts_as_frequent_as_those_of_users() -> None:
    shapes = {Shape(4096, 0): 600, Shape(8192, 0): 300, Shape(8192, 16): 100}
    found = Counter(
        shape_of(iterations, salt)
        for salt, iterations in (challenge(f"nobody {n}", shapes) for n in range(2000))
    )
    assert found.keys() == shapes.keys()
    for shape, count in shapes.items():
        assert abs(found[shape] - 2 * count) < 150, found
    one = {Shape(5000, 16): 1}
    assert {challenge(name, one)[1] for name in ("nobody", "somebody")} == {5000}
    assert challenge("user", one) == (SALT, ITERATIONS_MIN)


def test_an_unknown_user_keeps_its_challenge_when_users_change() -> None:
    names = [f"nobody {n}" for n in range(500)]
    few = {Shape(4096, 0): 50, Shape(8192, 0): 49}
    more = {Shape(4096, 0): 50, Shape(8192, 0): 50}
    assert [challenge(name, few) for name in names] == [challenge(name, few) for name in names]
    moved = sum(challenge(name, few) != challenge(name, more) for name in names)
    assert moved < 20


def test_salts_of_unknown_users_are_like_those_of_kafkas_clients() -> None:
    salts = [challenge(f"nobody {n}", {Shape(4096, 0): 1})[0] for n in range(200)]
    assert all(re.fullmatch(b"[0-9a-z]{20,26}", salt) for salt in salts)
    # A 130-bit number has at most 26 digits in base 36. A number with 26 digits begins with 1.
    assert all(salt.startswith(b"1") for salt in salts if len(salt) == 26)
    assert len({*salts}) == 200
    assert {len(salt) for salt in salts} >= {25, 26}
    assert {len(challenge(f"nobody {n}", {Shape(4096, 40): 1})[0]) for n in range(9)} == {40}


def test_only_the_most_common_shapes_are_drawn_from() -> None:
    shapes = [Shape(4096 + n, 24) for n in range(100) for _ in range(100 - n)]
    found = most_common(shapes)
    assert list(found) == [Shape(4096 + n, 24) for n in range(SHAPES_MAX)]
    assert found[Shape(4096, 24)] == 100


def test_an_unknown_user_never_authenticates_even_with_the_fake_credential() -> None:
    """For an unknown user, even a proof that matches the fake credential is refused."""
    digest = hmac.digest(b"secret", b"nobody", "sha512")
    found = server()
    answer = found.step(b"n,,n=nobody,r=abc").decode()
    nonce = answer.split(",")[0][2:]
    signed = f"n=nobody,r=abc,{answer},c=biws,r={nonce}".encode()
    signature = hmac.digest(digest[:32], signed, "sha256")
    with pytest.raises(LoginFailed):
        found.step(b"c=biws,r=" + nonce.encode() + b",p=" + base64.b64encode(signature))


@pytest.mark.parametrize(
    "first",
    [
        b"",
        b"n",
        b"p=tls-unique,,n=user,r=a",
        b"y,,n=user,r=a",
        b"n,,n=user",
        b"n,,r=a,n=user",
        b"n,,m=x,n=user,r=a",
        b"n,a=other,n=user,r=a",
        b"n,b=user,n=user,r=a",
        b"n,,n=us=er,r=a",
        b"n,,n=us==2C3Der,r=a",
        b"n,,n=,r=a",
        b"n,,n=user,r=",
        b"n,,n=user,r=a b",
        b"n,,n=user,r=a\xc3\xa4",
        b"n,,n=user,r=a,tokenauth=true",
        b"\xff",
        b"n,,n=user,r=" + b"a" * 9000,
    ],
)
def test_first_messages_that_are_refused(first: bytes) -> None:
    with pytest.raises(LoginFailed):
        server().step(first)


def test_names_with_commas_and_equals_signs() -> None:
    asked: list[str] = []

    def find(user: str) -> None:
        asked.append(user)

    ScramExchange(SHA_256, find, nonce=b"n", pretender_key=b"k").step(b"n,,n=a=2Cb=3Dc,r=x")
    assert asked == ["a,b=c"]


def test_a_final_message_repeats_nonce_and_binding_of_its_exchange() -> None:
    first = "n,,n=user,r=abc"
    for binding, nonce in (("n,,", "abc"), ("n,,", "abcother"), ("n,a=user,", None)):
        found = server()
        answer = found.step(first.encode())
        final = client_final(SHA_256, first, answer, "pencil", nonce=nonce)
        if nonce is None:
            final = client_final(SHA_256, first, answer, "pencil").replace(
                base64.b64encode(b"n,,"), base64.b64encode(binding.encode())
            )
        with pytest.raises(LoginFailed, match="of another exchange"):
            found.step(final)
        assert found.login is None


@examples(200)
@given(st.data())
def test_no_changed_proof_gets_in(data: st.DataObject) -> None:
    """Changing any single byte of the correct final message makes the broker refuse it.

    The last base64 character and the padding stay, because this character has two unused bits.
    """
    found = server()
    first = "n,,n=user,r=abc"
    final = bytearray(client_final(SHA_256, first, found.step(first.encode()), "pencil"))
    at = data.draw(st.integers(0, len(final) - 3))
    final[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(LoginFailed):
        found.step(bytes(final))
    assert found.login is None


@pytest.mark.parametrize("proof", ["", "!", "YWJj", "\u00e4\u00f6\u00fc\u00df"])
def test_a_proof_that_is_none_is_a_failed_login(proof: str) -> None:
    found = server()
    nonce = found.step(b"n,,n=user,r=abc").decode().split(",")[0]
    with pytest.raises(LoginFailed):
        found.step(f"c=biws,{nonce},p={proof}".encode())


def test_no_part_of_a_credential_is_printed() -> None:
    text = repr(KEPT[SHA_256])
    assert KEPT[SHA_256].stored_key.hex() not in text
    assert "stored_key" not in text
    assert "salt" not in text
