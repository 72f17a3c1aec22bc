"""SASL mechanisms as exchanges of tokens, the server's side.

Source: RFC 4616 (PLAIN), RFC 7628 (OAUTHBEARER); Kafka 4.3's PlainSaslServer, ScramSaslServer and
OAuthBearerSaslServer, whose sentences clients print.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from tidelog.server.security.errors import FOR_ANOTHER, FOR_ANOTHER_TOLD, LoginFailed
from tidelog.server.security.pretenders import Shape
from tidelog.server.security.scram import BY_SASL_NAME, ScramMechanism, ScramServer
from tidelog.storage.metadata_file import ScramCredential

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
            raise LoginFailed("a PLAIN message without three parts", told=text)
        for_whom, user, password = parts
        for part, what in ((user, "username"), (password, "password")):
            if not part:
                told = f"Authentication failed: {what} not specified"
                raise LoginFailed(f"a PLAIN message without {what}", told=told)
        if not self._is_user(user, password):
            told = "Authentication failed: Invalid username or password"
            raise LoginFailed("no such user, or another password", told=told)
        if for_whom not in {"", user}:
            raise LoginFailed(FOR_ANOTHER, told=FOR_ANOTHER_TOLD)
        self.login = Login(user)
        return b""


class ScramExchange:
    """SCRAM, in two messages."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: Callable[[str], ScramCredential | None],
        *,
        nonce: bytes,
        pretender_key: bytes,
        shapes: Callable[[], Mapping[Shape, int]],
    ) -> None:
        self._server = ScramServer(
            mechanism, find, nonce=nonce, pretender_key=pretender_key, shapes=shapes
        )

    @property
    def login(self) -> Login | None:
        """Who it is, after the second message."""
        return None if self._server.user is None else Login(self._server.user)

    def step(self, token: bytes) -> bytes:
        """The server's message; raises LoginFailed."""
        return self._server.step(token)


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
            told = '{"status":"invalid_token"}'
            self._failure = LoginFailed(str(error), told=told)
            return told.encode()
        if for_whom not in {"", login.user}:
            raise LoginFailed(FOR_ANOTHER, told=FOR_ANOTHER_TOLD)
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
