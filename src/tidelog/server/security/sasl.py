"""SASL mechanisms on the server's side: PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER.

For SCRAM the broker stores StoredKey, which verifies the client's proof, and ServerKey, which
proves the server to the client; a SCRAM login never sends the password to the broker. If a client
names an unknown user, the broker sends a fake salt and iteration count, and refuses the login at
the end. Each login with the same unknown name gets the same fake values. A keyed hash draws fake
iteration counts and salt formats. Each value is as frequent among unknown names as among real
users, so fake values don't reveal which users exist. When users are added or removed, a name keeps
its fake values, unless the new frequencies require a change (weighted rendezvous hashing).

Source: RFC 4616, RFC 5802, RFC 7628, RFC 7677; KIP-84; Kafka 4.3's PlainSaslServer, ScramSaslServer
and OAuthBearerSaslServer, whose messages clients print.
"""

import base64
import hashlib
import hmac
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from math import log
from typing import ClassVar, Final, NamedTuple, Protocol

from tidelog.error_codes import ErrorCode
from tidelog.errors import TidelogError
from tidelog.lazy_dataclass import dataclass
from tidelog.storage.directory.broker_files import ScramCredential

# Fake shapes are drawn from at most this many shapes, the most frequent ones. A larger number would
# slow down each login.
SHAPES_MAX: Final = 16

# A salt of Kafka's own clients is a random number of this many bits, as text in base 36 with
# lower-case letters.
_TEXT_BITS: Final = 130

_TEXT: Final = re.compile(rb"[0-9a-z]{1,26}")
_DIGITS: Final = b"0123456789abcdefghijklmnopqrstuvwxyz"


class Shape(NamedTuple):
    """Properties of a credential that any client can see.

    Attributes:
        iterations: Number of hash iterations.
        salt_bytes: Length of the salt; 0 for the format of Kafka's own clients.
    """

    iterations: int
    salt_bytes: int


def shape_of(iterations: int, salt: bytes) -> Shape:
    """Return the shape of a credential."""
    return Shape(iterations, 0 if _TEXT.fullmatch(salt) else len(salt))


def most_common(shapes: Iterable[Shape]) -> Mapping[Shape, int]:
    """Return the `SHAPES_MAX` most frequent shapes with their counts. Ties are ordered by shape."""
    counts = Counter(shapes)
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:SHAPES_MAX])


def draw_shape(key: bytes, user: str, shapes: Mapping[Shape, int]) -> Shape:
    """Draw the shape of an unknown user from weighted `shapes`, which must not be empty."""
    return min(shapes, key=lambda shape: _lot(key, user, shape) / shapes[shape])


def _lot(key: bytes, user: str, shape: Shape) -> float:
    """Draw an exponentially distributed number by a keyed hash.

    `draw_shape` divides the number of each shape by the shape's weight, and takes the shape with
    the smallest result. So the probability of each shape is proportional to its weight.
    """
    text = f"{shape.iterations},{shape.salt_bytes},{user}"
    drawn = int.from_bytes(hmac.digest(key, text.encode(), "sha256")[:8], "big")
    return -log((drawn + 1) / (1 << 64))


def make_salt(shape: Shape, secret: bytes) -> bytes:
    """Make a salt of a shape. The same shape and secret always give the same salt."""
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

FOR_ANOTHER_MESSAGE: Final = (
    "Authentication failed: Client requested an authorization id that is different from username"
)


class LoginFailed(TidelogError):
    """A login failed, or the credentials could not be checked.

    The reason is for the broker's log, and contains no secret and no client input. The message to
    the client does not reveal whether the user exists.

    Attributes:
        client_message: Message to the client; None for the mechanism's default.
    """

    code: ClassVar[int | None] = ErrorCode.SASL_AUTHENTICATION_FAILED

    def __init__(self, reason: str, *, client_message: str | None = None) -> None:
        self.client_message = client_message
        super().__init__(reason)


ITERATIONS_MIN: Final = 4096
ITERATIONS_MAX: Final = 16_384

# Maximum length of a client's message in bytes. Messages with usual names and nonces are shorter.
MESSAGE_BYTES_MAX: Final = 8192

SALT_BYTES: Final = 24

# If no credentials are stored, the fake credentials of all unknown users have this shape. As only
# one shape is possible, its weight (1) has no effect.
_FIRST_SHAPE: Final = {Shape(ITERATIONS_MIN, SALT_BYTES): 1}

_BARE_EQUALS: Final = re.compile("=(?!2C|3D)")


class ScramMechanism(IntEnum):
    """SCRAM mechanism, with Kafka's number. UNKNOWN stands for numbers without a mechanism."""

    UNKNOWN = 0
    SCRAM_SHA_256 = 1
    SCRAM_SHA_512 = 2

    @property
    def hash_name(self) -> str:
        """Name of the hash in `hashlib`."""
        return "sha256" if self is ScramMechanism.SCRAM_SHA_256 else "sha512"

    @property
    def sasl_name(self) -> str:
        """SASL name of the mechanism."""
        return self.name.replace("_", "-")


BY_SASL_NAME: Final = {
    each.sasl_name: each for each in ScramMechanism if each is not ScramMechanism.UNKNOWN
}


def credential_of(
    mechanism: ScramMechanism, salt: bytes, iterations: int, salted_password: bytes
) -> ScramCredential:
    """Derive the credential to store from a salted and hashed password."""
    name = mechanism.hash_name
    client_key = hmac.digest(salted_password, b"Client Key", name)
    stored_key = hashlib.new(name, client_key).digest()
    server_key = hmac.digest(salted_password, b"Server Key", name)
    return ScramCredential(salt, iterations, stored_key, server_key)


class ScramExchange:
    """SCRAM exchange of two rounds: client-first -> server-first, client-final -> server-final."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: Callable[[str], ScramCredential | None],
        *,
        nonce: bytes,
        pretender_key: bytes,
        shapes: Callable[[], Mapping[Shape, int]] = dict,
    ) -> None:
        """Start an exchange.

        Args:
            mechanism: SCRAM mechanism.
            find: Returns a user's credential; None if the user has no credential.
            nonce: Random bytes for this exchange only.
            pretender_key: Secret from which the shapes and salts of unknown users are derived. The
                secret stays the same while the broker runs.
            shapes: Returns the number of users per shape for the mechanism. The fake credentials of
                unknown users have shapes with the same frequencies.
        """
        self._mechanism = mechanism
        self._find = find
        self._nonce = base64.b64encode(nonce).decode()
        self._pretender_key = pretender_key
        self._shapes = shapes
        self._pretended: ScramCredential | None = None
        self._user = ""
        self._credential: ScramCredential | None = None
        self._messages = ""  # client-first-bare and server-first, which proofs sign
        self._header = ""
        self._expected_nonce = ""
        self.login: AuthenticatedUser | None = None

    def step(self, token: bytes) -> bytes:
        """Return the response to a client's message.

        After the client's second message, `login` is set.

        Raises:
            LoginFailed: The message is invalid, the client wants to act for another user, the user
                is unknown, or the password is wrong. The client does not learn whether the user
                exists.
        """
        text = _text_of(token)
        return self._first(text) if not self._messages else self._final(text)

    def _first(self, text: str) -> bytes:
        flag, comma, rest = text.partition(",")
        authzid, second, bare = rest.partition(",")
        if flag != "n" or not comma or not second or authzid[:2] not in {"", "a="}:
            raise LoginFailed("a first message that is not SCRAM without channel binding")
        fields = bare.split(",")
        if len(fields) < 2 or fields[0][:2] != "n=" or fields[1][:2] != "r=":
            raise LoginFailed("a first message without name and nonce")
        if any(each.lower() == "tokenauth=true" for each in fields[2:]):
            raise LoginFailed("delegation tokens are not supported")
        self._user = _unescaped(fields[0][2:])
        if authzid and _unescaped(authzid[2:]) not in {"", self._user}:
            raise LoginFailed(FOR_ANOTHER, client_message=FOR_ANOTHER_MESSAGE)
        nonce = fields[1][2:]
        if not self._user or not nonce or not _is_printable(nonce):
            raise LoginFailed("a first message with an empty name or a bad nonce")
        self._header = f"{flag},{authzid},"
        self._expected_nonce = nonce + self._nonce
        self._credential = self._find(self._user)
        # The fake credential is computed for every user, so that the response takes as long for
        # known users as for unknown users.
        self._pretended = self._pretend()
        credential = self._credential or self._pretended
        salt = base64.b64encode(credential.salt).decode()
        message = f"r={self._expected_nonce},s={salt},i={credential.iterations}"
        self._messages = f"{bare},{message}"
        return message.encode()

    def _pretend(self) -> ScramCredential:
        """Return the fake credential of an unknown user.

        A user's fake credential changes only if the result of `shapes` changes.
        """
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
        if not self._is_valid(credential, proof, signed) or self._credential is None:
            raise LoginFailed("unknown user or wrong password")
        self.login = AuthenticatedUser(self._user)
        signature = hmac.digest(credential.server_key, signed, self._mechanism.hash_name)
        return b"v=" + base64.b64encode(signature)

    def _is_valid(self, credential: ScramCredential, proof: bytes, signed: bytes) -> bool:
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
        raise LoginFailed(f"message of {len(token)} bytes exceeds {MESSAGE_BYTES_MAX} bytes")
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise LoginFailed("a message that is not UTF-8") from None


def _unescaped(name: str) -> str:
    """Decode a name of RFC 5802: `=2C` is a comma, `=3D` is `=`; any other `=` is invalid."""
    if _BARE_EQUALS.search(name):
        raise LoginFailed("a name with a bare equals sign")
    return name.replace("=2C", ",").replace("=3D", "=")


def _is_printable(nonce: str) -> bool:
    return all(" " < character <= "~" and character != "," for character in nonce)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except ValueError:  # b64decode also raises ValueError for text that is not ASCII
        raise LoginFailed("a proof that is not base64") from None


PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"

NONCE_BYTES: Final = 24
_SEPARATOR: Final = "\x01"

# Message with which a client replies to the broker's error response, and which ends the exchange.
_END_OF_EXCHANGE: Final = b"\x01"


@dataclass(frozen=True, slots=True)
class AuthenticatedUser:
    """Authenticated user.

    Attributes:
        user: Name, without `User:`.
        expires_ms: Wall time in ms from which on the login is invalid; None if it stays valid.
    """

    user: str
    expires_ms: int | None = None


class SaslServer(Protocol):
    """SASL exchange. `step` is called with each token of the client until `login` is set."""

    @property
    def login(self) -> AuthenticatedUser | None:
        """Authenticated user; None before the exchange has succeeded."""
        ...

    def step(self, token: bytes) -> bytes:
        """Return the response to a token.

        The call may take milliseconds, or seconds if it fetches keys. This method may be called in
        any thread.

        Raises:
            LoginFailed: The exchange has failed.
        """
        ...


class PlainExchange:
    """PLAIN exchange of one message: `[authzid] NUL name NUL password`."""

    def __init__(self, is_user: Callable[[str, str], bool]) -> None:
        """Start an exchange. `is_user` must take as long for unknown users as for known ones."""
        self._is_user = is_user
        self.login: AuthenticatedUser | None = None

    def step(self, token: bytes) -> bytes:
        """Return an empty response if the login succeeds; raises LoginFailed if it fails."""
        try:
            parts = token.decode().split("\0")
        except UnicodeDecodeError:
            raise LoginFailed("a PLAIN message that is not UTF-8") from None
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
            raise LoginFailed("unknown user or wrong password", client_message=client_message)
        if for_whom not in {"", user}:
            raise LoginFailed(FOR_ANOTHER, client_message=FOR_ANOTHER_MESSAGE)
        self.login = AuthenticatedUser(user)
        return b""


class BearerExchange:
    """OAUTHBEARER exchange.

    After an invalid token the broker responds with an error, the client replies, and then the
    exchange fails.
    """

    def __init__(self, check: Callable[[str], AuthenticatedUser]) -> None:
        """Start an exchange. `check` returns the user of a token, or raises LoginFailed."""
        self._check = check
        self._failure: LoginFailed | None = None
        self.login: AuthenticatedUser | None = None

    def step(self, token: bytes) -> bytes:
        """Return an empty response for a valid token, or the error for an invalid token.

        Raises:
            LoginFailed: The message is invalid or follows an error, or the client wants to act for
                another user.
        """
        if self._failure is not None:
            raise self._failure if token == _END_OF_EXCHANGE else LoginFailed(str(self._failure))
        for_whom, bearer = _bearer_of(token)
        try:
            login = self._check(bearer)
        except LoginFailed as error:
            client_message = '{"status":"invalid_token"}'
            self._failure = LoginFailed(str(error), client_message=client_message)
            return client_message.encode()
        if for_whom not in {"", login.user}:
            raise LoginFailed(FOR_ANOTHER, client_message=FOR_ANOTHER_MESSAGE)
        self.login = login
        return b""


def _bearer_of(token: bytes) -> tuple[str, str]:
    """Return the authorization id, which can be empty, and the token. Source: RFC 7628, 3.1."""
    failure = LoginFailed("a message that is not OAUTHBEARER")
    try:
        header, *pairs = token.decode().split(_SEPARATOR)
    except UnicodeDecodeError:
        raise failure from None
    flag, _, rest = header.partition(",")
    if flag != "n" or not rest.endswith(",") or pairs[-2:] != ["", ""]:
        raise failure
    for_whom = rest[:-1]
    if for_whom and not for_whom.startswith("a="):
        raise failure
    values = dict(pair.partition("=")[::2] for pair in pairs[:-2])
    scheme, _, bearer = values.get("auth", "").partition(" ")
    if len(values) != len(pairs) - 2 or scheme.lower() != "bearer" or not bearer.strip():
        raise failure
    return for_whom[2:].replace("=2C", ",").replace("=3D", "="), bearer.strip()


def failure_text(mechanism: str, *, is_renewal: bool = False) -> str:
    """Return Kafka's message for a failed login whose mechanism has no message of its own."""
    what = "re-authentication" if is_renewal else "authentication"
    text = f"Authentication failed during {what} due to invalid credentials with SASL mechanism"
    return f"{text} {mechanism}"
