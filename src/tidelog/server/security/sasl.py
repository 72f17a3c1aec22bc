"""SASL mechanisms on the server's side: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.

For SCRAM the broker stores StoredKey, which verifies the client's proof, and ServerKey, which
proves the server to the client; it never sees a password. An unknown user gets a plausible response
with a constant salt and fails at the end. Fake iteration counts and salt formats are drawn by a
keyed hash with the frequencies of real users, so they don't reveal which users exist. A name keeps
its draw when users change, except where frequencies require a move (weighted rendezvous hashing).

Source: RFC 4616, RFC 5802, RFC 7628, RFC 7677; KIP-84; Kafka 4.3's PlainSaslServer, ScramSaslServer
and OAuthBearerSaslServer, whose messages clients print.
"""

import base64
import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from math import log
from typing import ClassVar, Final, NamedTuple, Protocol

from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError
from tidelog.storage.directory.broker_files import ScramCredential

# The forms that most users have; more of them would be work for each log-in.
SHAPES_MAX: Final = 16


# Salts of Kafka's own clients: a number of so many bits, in digits and small letters.
_TEXT_BITS: Final = 130


_TEXT: Final = re.compile(rb"[0-9a-z]{1,26}")


_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"


class Shape(NamedTuple):
    """What anybody may hear of a user.

    Attributes:
        iterations: How often the password was hashed.
        salt_bytes: How long the salt is; 0 for one as Kafka's own clients make them.
    """

    iterations: int
    salt_bytes: int


def shape_of(iterations: int, salt: bytes) -> Shape:
    """A user's shape."""
    return Shape(iterations, 0 if _TEXT.fullmatch(salt) else len(salt))


def most_common(shapes: Iterable[Shape]) -> Mapping[Shape, int]:
    """How many have which shape, at most `SHAPES_MAX` of them; an equal count goes by the shape."""
    counts = Counter(shapes)
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:SHAPES_MAX])


def draw_shape(key: bytes, user: str, shapes: Mapping[Shape, int]) -> Shape:
    """The shape of a user that there is not; there must be some."""
    return min(shapes, key=lambda shape: _lot(key, user, shape) / shapes[shape])


def _lot(key: bytes, user: str, shape: Shape) -> float:
    """A number that is drawn as a waiting time is, so the shortest follow the weights."""
    text = f"{shape.iterations},{shape.salt_bytes},{user}"
    drawn = int.from_bytes(hmac.digest(key, text.encode(), "sha256")[:8], "big")
    return -log((drawn + 1) / (1 << 64))


def make_salt(shape: Shape, secret: bytes) -> bytes:
    """A salt of a shape, always the same for a secret."""
    if shape.salt_bytes:
        return hashlib.shake_256(secret).digest(shape.salt_bytes)
    size_bytes = -(-_TEXT_BITS // 8)
    number = int.from_bytes(hashlib.shake_256(secret).digest(size_bytes), "big")
    return _in_base_36(number >> (8 * size_bytes - _TEXT_BITS))


def _in_base_36(number: int) -> bytes:
    digits = bytearray()
    while number or not digits:
        number, digit = divmod(number, len(_DIGITS))
        digits.append(_DIGITS[digit])
    return bytes(reversed(digits))


FOR_ANOTHER: Final = "a client that wants to act for another user"


FOR_ANOTHER_TOLD: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)


class LoginFailed(TidelogError):
    """Somebody is not who he says he is, or can't be asked.

    The reason is for our log: it holds no secret and nothing a client sent. What the client is told
    does not say what was wrong.

    Attributes:
        client_message: What the client is told; None for the mechanism's usual sentence.
    """

    code: ClassVar[int | None] = ErrorCode.SASL_AUTHENTICATION_FAILED

    def __init__(self, reason: str, *, client_message: str | None = None) -> None:
        self.client_message = client_message
        super().__init__(reason)


ITERATIONS_MIN: Final = 4096


ITERATIONS_MAX: Final = 16_384


# Of a client's message; names and nonces are short.
MESSAGE_BYTES_MAX: Final = 8192


SALT_BYTES: Final = 24


# Where nobody has a credential that an unknown user could be like.
_FIRST_SHAPE: Final = {Shape(ITERATIONS_MIN, SALT_BYTES): 1}


_BARE_EQUALS: Final = re.compile("=(?!2C|3D)")


class ScramMechanism(IntEnum):
    """Kafka's numbers on the wire; UNKNOWN is for what it does not know."""

    UNKNOWN = 0
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def hash_name(self) -> str:
        """The hash as `hashlib` calls it."""
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @property
    def sasl_name(self) -> str:
        """As clients ask for it."""
        return self.name.replace("_", "-")


BY_SASL_NAME: Final = {
    found.sasl_name: found for found in ScramMechanism if found is not ScramMechanism.UNKNOWN
}


def credential_of(
    mechanism: ScramMechanism, salt: bytes, iterations: int, salted_password: bytes
) -> ScramCredential:
    """What to keep of a password that was salted and hashed already."""
    name = mechanism.hash_name
    client_key = hmac.digest(salted_password, b"Client Key", name)
    stored_key = hashlib.new(name, client_key).digest()
    server_key = hmac.digest(salted_password, b"Server Key", name)
    return ScramCredential(salt, iterations, stored_key, server_key)


class ScramExchange:
    """SCRAM, in two messages: client-first -> server-first, client-final -> server-final."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: Callable[[str], ScramCredential | None],
        *,
        nonce: bytes,
        pretender_key: bytes,
        shapes: Callable[[], Mapping[Shape, int]] = dict,
    ) -> None:
        """A log-in that nobody has begun yet.

        Args:
            mechanism: Which hash.
            find: A user's credential, None for one that has none.
            nonce: Random bytes, of this log-in alone.
            pretender_key: A secret that stays the same while the broker runs, from which the salts
                of unknown users are made.
            shapes: How many users of the mechanism have which form of salt and how many iterations;
                unknown ones seem to have them as often.
        """
        self._mechanism = mechanism
        self._find = find
        self._nonce = base64.b64encode(nonce).decode()
        self._pretender_key = pretender_key
        self._shapes = shapes
        self._pretended: ScramCredential | None = None
        self._user = ""
        self._credential: ScramCredential | None = None
        self._messages = ""  # client-first-bare and server-first, which proofs cover
        self._header = ""
        self._expected_nonce = ""
        self.login: Login | None = None

    def step(self, token: bytes) -> bytes:
        """The answer to a client's message; after the second one `login` says who it is.

        Raises:
            LoginFailed: A bad message, an unknown user, a wrong password; which, nobody is told.
        """
        text = _text_of(token)
        return self._first(text) if not self._messages else self._final(text)

    def _first(self, text: str) -> bytes:
        flag, comma, rest = text.partition(",")
        authzid, second, bare = rest.partition(",")
        if flag != "n" or not comma or not second or authzid[:2] not in {"", "a="}:
            raise LoginFailed("a first message that is no SCRAM without channel binding")
        fields = bare.split(",")
        if len(fields) < 2 or fields[0][:2] != "n=" or fields[1][:2] != "r=":
            raise LoginFailed("a first message without name and nonce")
        if any(each.lower() == "tokenauth=true" for each in fields[2:]):
            raise LoginFailed("delegation tokens are not known here")
        self._user = _unescaped(fields[0][2:])
        if authzid and _unescaped(authzid[2:]) not in {"", self._user}:
            raise LoginFailed(FOR_ANOTHER, client_message=FOR_ANOTHER_TOLD)
        nonce = fields[1][2:]
        if not self._user or not nonce or not _is_printable(nonce):
            raise LoginFailed("a first message with an empty name or a bad nonce")
        self._header = f"{flag},{authzid},"
        self._expected_nonce = nonce + self._nonce
        self._credential = self._find(self._user)
        # Made for everybody: it takes a known user as long.
        self._pretended = self._pretend()
        credential = self._credential or self._pretended
        salt = base64.b64encode(credential.salt).decode()
        answer = f"r={self._expected_nonce},s={salt},i={credential.iterations}"
        self._messages = f"{bare},{answer}"
        return answer.encode()

    def _pretend(self) -> ScramCredential:
        """What an unknown user seems to have; the same each time, as a known one's is."""
        digest = hmac.digest(self._pretender_key, self._user.encode(), "sha512")
        shape = draw_shape(self._pretender_key, self._user, self._shapes() or _FIRST_SHAPE)
        return ScramCredential(make_salt(shape, digest), shape.iterations, digest, digest)

    def _final(self, text: str) -> bytes:
        without, mark, proof_text = text.rpartition(",p=")
        fields = without.split(",")
        if not mark or len(fields) < 2:
            raise LoginFailed("a final message without a proof")
        binding = base64.b64encode(self._header.encode()).decode()
        if fields[0] != f"c={binding}" or fields[1] != f"r={self._expected_nonce}":
            raise LoginFailed("a final message of another exchange")
        proof = _decoded(proof_text)
        signed = f"{self._messages},{without}".encode()
        credential = self._credential or self._pretended
        assert credential is not None
        if not self._is_right(credential, proof, signed) or self._credential is None:
            raise LoginFailed("no such user, or another password")
        self.login = Login(self._user)
        signature = hmac.digest(credential.server_key, signed, self._mechanism.hash_name)
        return b"v=" + base64.b64encode(signature)

    def _is_right(self, credential: ScramCredential, proof: bytes, signed: bytes) -> bool:
        name = self._mechanism.hash_name
        size = hashlib.new(name).digest_size
        signature = hmac.digest(credential.stored_key[:size], signed, name)
        if len(proof) != size:
            return False
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        digest = hashlib.new(name, client_key).digest()
        return hmac.compare_digest(digest, credential.stored_key[:size])


def _text_of(token: bytes) -> str:
    if len(token) > MESSAGE_BYTES_MAX:
        raise LoginFailed(f"a message of {len(token)} bytes, at most {MESSAGE_BYTES_MAX} allowed")
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise LoginFailed("a message that is no UTF-8") from None


def _unescaped(name: str) -> str:
    """A name of RFC 5802: `=2C` is a comma, `=3D` an equals sign, no other `=` may be there."""
    if _BARE_EQUALS.search(name):
        raise LoginFailed("a name with a bare equals sign")
    return name.replace("=2C", ",").replace("=3D", "=")


def _is_printable(nonce: str) -> bool:
    return all(" " < character <= "~" and character != "," for character in nonce)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:  # also what is no ASCII
        raise LoginFailed("a proof that is no base64") from None


PLAIN: Final = "PLAIN"


OAUTHBEARER: Final = "OAUTHBEARER"


# What may stand in sasl.enabled.mechanisms, in Kafka's words.
KNOWN: Final = (PLAIN, *BY_SASL_NAME, OAUTHBEARER)


NONCE_BYTES: Final = 24


_SEPARATOR: Final = "\x01"


# What a client says to an error it has been told, before it is told that it is sent away.
_LAST_WORD: Final = b"\x01"


@dataclass(frozen=True, slots=True)
class Login:
    """Who somebody is.

    Attributes:
        user: The name, without `User:`.
        expires_ms: Wall time from which on that holds no more, in ms; None for always.
    """

    user: str
    expires_ms: int | None = None


class Exchange(Protocol):
    """One log-in: `step` with each token of the client until `login` says who it is."""

    @property
    def login(self) -> Login | None:
        """Who it is, None while that is not known."""
        ...

    def step(self, token: bytes) -> bytes:
        """The answer to a token. May take milliseconds; runs in any thread.

        Raises:
            LoginFailed: It is over.
        """
        ...


class PlainExchange:
    """`[authzid] NUL name NUL password`, in one message."""

    def __init__(self, is_user: Callable[[str, str], bool]) -> None:
        """A log-in; `is_user` takes as long for unknown users as for known ones."""
        self._is_user = is_user
        self.login: Login | None = None

    def step(self, token: bytes) -> bytes:
        """An empty answer where the password is right; raises LoginFailed."""
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            raise LoginFailed("a PLAIN message that is no UTF-8") from None
        if len(parts) != 3:
            text = f"Invalid SASL/PLAIN response: expected 3 tokens, got {len(parts)}"
            raise LoginFailed("a PLAIN message without three parts", client_message=text)
        for_whom, user, password = parts
        for part, what in ((user, "username"), (password, "password")):
            if not part:
                client_message = f"Authentication failed: {what} not specified"
                raise LoginFailed(f"a PLAIN message without {what}", client_message=client_message)
        if not self._is_user(user, password):
            client_message = "Authentication failed: Invalid username or password"
            raise LoginFailed("no such user, or another password", client_message=client_message)
        if for_whom not in {"", user}:
            raise LoginFailed(FOR_ANOTHER, client_message=FOR_ANOTHER_TOLD)
        self.login = Login(user)
        return b""


class BearerExchange:
    """A token; where it is bad the client hears so, says a last word and is sent away."""

    def __init__(self, check: Callable[[str], Login]) -> None:
        """A log-in; `check` says whose a token is, or raises LoginFailed."""
        self._check = check
        self._failure: LoginFailed | None = None
        self.login: Login | None = None

    def step(self, token: bytes) -> bytes:
        """An empty answer where the token is good; raises LoginFailed."""
        if self._failure is not None:
            raise self._failure if token == _LAST_WORD else LoginFailed(str(self._failure))
        for_whom, bearer = _bearer_of(token)
        try:
            login = self._check(bearer)
        except LoginFailed as error:
            client_message = '{"status":"invalid_token"}'
            self._failure = LoginFailed(str(error), client_message=client_message)
            return client_message.encode()
        if for_whom not in {"", login.user}:
            raise LoginFailed(FOR_ANOTHER, client_message=FOR_ANOTHER_TOLD)
        self.login = login
        return b""


def _bearer_of(token: bytes) -> tuple[str, str]:
    """The authorization id, which may be empty, and the token. Source: RFC 7628, 3.1."""
    bad = LoginFailed("a message that is no OAUTHBEARER")
    try:
        header, *pairs = token.decode().split(_SEPARATOR)
    except UnicodeDecodeError:
        raise bad from None
    flag, _, rest = header.partition(",")
    if flag != "n" or not rest.endswith(",") or pairs[-2:] != ["", ""]:
        raise bad
    for_whom = rest[:-1]
    if for_whom and not for_whom.startswith("a="):
        raise bad
    values = dict(pair.partition("=")[::2] for pair in pairs[:-2])
    scheme, _, bearer = values.get("auth", "").partition(" ")
    if len(values) != len(pairs) - 2 or scheme.lower() != "bearer" or not bearer.strip():
        raise bad
    return for_whom[2:].replace("=2C", ",").replace("=3D", "="), bearer.strip()


def failure_text(mechanism: str, *, is_renewal: bool = False) -> str:
    """What Kafka tells a client of a log-in that has failed, where the mechanism says no more."""
    what = "re-authentication" if is_renewal else "authentication"
    text = f"Authentication failed during {what} due to invalid credentials with SASL mechanism"
    return f"{text} {mechanism}"
