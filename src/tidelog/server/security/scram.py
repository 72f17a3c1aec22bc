"""SCRAM-SHA-256 and SCRAM-SHA-512: the server's side, and the keys that it keeps.

The broker never sees a password: it keeps what a password's proof can be checked by (StoredKey) and
what it shows the client that it is the right server by (ServerKey). Who is unknown is answered as
if he were there, with a salt of his own that is always the same and as many iterations as others
have, and fails at the end.

Source: RFC 5802, RFC 7677; KIP-84; Kafka 4.3's ScramSaslServer (limits, what it refuses).
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Final

from tidelog.server.security.errors import FOR_ANOTHER, FOR_ANOTHER_TOLD, LoginFailed
from tidelog.server.security.pretenders import Shape, draw_shape, make_salt
from tidelog.storage.metadata_file import ScramCredential

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


class ScramServer:
    """One log-in: client-first -> server-first, client-final -> server-final."""

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
        self._said = ""  # client-first-bare and server-first, which proofs cover
        self._header = ""
        self._expected_nonce = ""
        self.user: str | None = None

    def step(self, token: bytes) -> bytes:
        """The answer to a client's message; after the second one `user` says who it is.

        Raises:
            LoginFailed: A bad message, an unknown user, a wrong password; which, nobody is told.
        """
        text = _text_of(token)
        return self._first(text) if not self._said else self._final(text)

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
            raise LoginFailed(FOR_ANOTHER, told=FOR_ANOTHER_TOLD)
        nonce = fields[1][2:]
        if not self._user or not nonce or not _is_printable(nonce):
            raise LoginFailed("a first message with an empty name or a bad nonce")
        self._header = f"{flag},{authzid},"
        self._expected_nonce = nonce + self._nonce
        self._credential = self._find(self._user)
        # Made for everybody: it takes a known user as long.
        self._pretended = self._pretend()
        kept = self._credential or self._pretended
        salt = base64.b64encode(kept.salt).decode()
        answer = f"r={self._expected_nonce},s={salt},i={kept.iterations}"
        self._said = f"{bare},{answer}"
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
        signed = f"{self._said},{without}".encode()
        kept = self._credential or self._pretended
        assert kept is not None
        if not self._is_right(kept, proof, signed) or self._credential is None:
            raise LoginFailed("no such user, or another password")
        self.user = self._user
        signature = hmac.digest(kept.server_key, signed, self._mechanism.hash_name)
        return b"v=" + base64.b64encode(signature)

    def _is_right(self, kept: ScramCredential, proof: bytes, signed: bytes) -> bool:
        name = self._mechanism.hash_name
        size = hashlib.new(name).digest_size
        signature = hmac.digest(kept.stored_key[:size], signed, name)
        if len(proof) != size:
            return False
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        found = hashlib.new(name, client_key).digest()
        return hmac.compare_digest(found, kept.stored_key[:size])


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
