"""OAUTHBEARER tokens: required claims, signing keys, and sources of keys.

A key is used only with the algorithms of its own type, even if the token's header names another
algorithm. Symmetric keys (`oct`) and the algorithm `none` are refused. PyJWT parses keys and
verifies signatures. This module checks the claims itself, because PyJWT would compare times with
the machine's clock instead of the broker's clock.

Keys come from a file, which is reread when it changes, or from a URL. Tokens are checked in
threads, because reading a file or a URL may block.

Source: RFC 7515, RFC 7517, RFC 7518, RFC 7519, RFC 8725; KIP-768; behavior of Kafka 4.3's
BrokerJwtValidator.
"""

import base64
import binascii
import json
import logging
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Final, TypeAlias
from urllib.parse import urlsplit
from urllib.request import (
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    ProxyHandler,
    Request,
    build_opener,
    url2pathname,
)

from tidelog.env import Env
from tidelog.errors import ConfigError
from tidelog.lazy_dataclass import dataclass
from tidelog.server.security.sasl import AuthenticatedUser, LoginFailed
from tidelog.server.security.tls import WatchedFiles
from tidelog.storage.files import read_file
from tidelog.types import Buffer

if TYPE_CHECKING:
    from jwt.algorithms import AllowedPublicKeys

_LOGGER: Final = logging.getLogger("tidelog.server")
SETTING: Final = "sasl.oauthbearer.jwks.endpoint.url"
BYTES_MAX: Final = 1 << 20
# Maximum time in seconds until a response is complete, even if it arrives in many pieces. It is
# shorter than the time limit for a login, so the client gets a response before the broker closes
# the connection.
TIMEOUT_S: float = 5
# After the last successful fetch, keys stay valid for this many refresh intervals, but at least for
# `VALID_MIN_MS`. The limit ensures that a revoked key does not stay valid if the server of the keys
# fails for a long time.
VALID_INTERVALS: Final = 4
VALID_MIN_MS: Final = 3_600_000
# Minimum time in ms between two attempts to fetch the keys because of an unknown key id, which may
# belong to a new key. After a failed fetch, the keys are also fetched again for a known key id:
# after this time, or after the refresh interval if that is shorter.
AGAIN_MS: Final = 10_000
_ON_THIS_MACHINE: Final = {("http", host) for host in ("127.0.0.1", "::1", "localhost")}
_RIGHT: Final = "must be file:///PATH or https://HOST/..."
# For RSA and each elliptic curve: algorithms, the JWK members that are numbers, and the length in
# bytes to which shorter numbers are padded.
_KINDS: Final = {
    "RSA": (("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), ("n", "e"), 1),
    "P-256": (("ES256",), ("x", "y"), 32),
    "P-384": (("ES384",), ("x", "y"), 48),
    "P-521": (("ES512",), ("x", "y"), 66),
}
KEYS_MAX: Final = 256
RSA_BITS_MIN: Final = 2048
# Maximum size of an RSA key in bits. Larger keys are slow to verify, so a client could cause high
# load.
RSA_BITS_MAX: Final = 8192


@dataclass(frozen=True, slots=True)
class PublicKey:
    """Public key that verifies the signatures of tokens.

    Attributes:
        key_id: Id of the key; None if the key has no id.
        algorithms: Signature algorithms with which the key may be used.
        key: Key object of the cryptography library.
    """

    key_id: str | None
    algorithms: frozenset[str]
    key: "AllowedPublicKeys"

    def has_signed(self, algorithm: str, signed: bytes, signature: bytes) -> bool:
        """Return True if this key may be used with the algorithm and the signature is valid."""
        from jwt import get_algorithm_by_name

        if algorithm not in self.algorithms:
            return False
        return get_algorithm_by_name(algorithm).verify(signed, self.key, signature)


# Function that returns the keys with an id, or all keys if the id is None. The function may fetch
# the keys from a URL first.
FindKeys = Callable[[str | None], Sequence[PublicKey]]
_SECONDS_MAX: Final = 1 << 40
_NAME_MAX: Final = 1024
# Characters that Java's `trim`, which Kafka uses, removes.
_BLANKS: Final = "".join(map(chr, range(0x21)))


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRules:
    """Requirements for tokens.

    Attributes:
        algorithms: Allowed signature algorithms.
        audiences: Accepted audiences; empty for any.
        issuer: Required issuer; empty for any.
        skew_s: Maximum clock skew in seconds.
        user_claim: Name of the claim that contains the user name.
    """

    algorithms: frozenset[str]
    audiences: frozenset[str] = frozenset()
    issuer: str = ""
    skew_s: int = 30
    user_claim: str = "sub"


def check_token(token: str, find: FindKeys, rules: TokenRules, now_ms: int) -> AuthenticatedUser:
    """Validate a token and return its user.

    Raises:
        LoginFailed: The token is invalid. The reason does not contain the token's contents.
    """
    try:
        claims = _opened(token, find, rules.algorithms)
    except (ValueError, UnicodeError):
        raise LoginFailed("a token that is not a JWT") from None
    _check_times(claims, rules, now_ms)
    if rules.issuer and claims.get("iss") != rules.issuer:
        raise LoginFailed("a token of another issuer")
    audience = claims.get("aud")
    named = audience if isinstance(audience, list) else [audience]
    if rules.audiences and not any(isinstance(a, str) and a in rules.audiences for a in named):
        raise LoginFailed("a token for another audience")
    _check_scope(claims.get("scope"))
    user = _trimmed(claims.get(rules.user_claim))
    if not 0 < len(user) <= _NAME_MAX or not _is_text(user):
        raise LoginFailed(f"a token without a name in `{rules.user_claim}`")
    # Fractions of a second are ignored, as in Kafka.
    return AuthenticatedUser(user, int(_seconds(claims, "exp")) * 1000)


def _opened(token: str, find: FindKeys, algorithms: frozenset[str]) -> Mapping[str, object]:
    """Verify the signature and return the claims."""
    packed_header, packed_claims, packed_signature = token.split(".")
    header = read_json(unpack(packed_header))
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or algorithm not in algorithms:
        raise LoginFailed("a token that is signed by an algorithm that is not allowed")
    if "crit" in header or not isinstance(key_id, str | None):
        raise LoginFailed("a token whose header needs an unknown extension")
    signed = f"{packed_header}.{packed_claims}".encode("ascii")
    signature = unpack(packed_signature)
    if not any(key.has_signed(algorithm, signed, signature) for key in find(key_id)):
        raise LoginFailed("the token has no signature of a trusted key")
    return read_json(unpack(packed_claims))


def _check_times(claims: Mapping[str, object], rules: TokenRules, now_ms: int) -> None:
    now_s = now_ms / 1000
    if _seconds(claims, "exp") + rules.skew_s <= now_s:
        raise LoginFailed("a token that has expired")
    _seconds(claims, "iat")  # required; its value is ignored, as in Kafka
    if "nbf" in claims and _seconds(claims, "nbf") - rules.skew_s > now_s:
        raise LoginFailed("a token that is not valid yet")


def _check_scope(scope: object) -> None:
    """Refuse a token with a scope that Kafka can't read. Other scopes have no effect."""
    if isinstance(scope, str):
        scope = [scope]
    names = [_trimmed(each) for each in scope] if isinstance(scope, list) else []
    if not all(names) or len(set(names)) < len(names):
        raise LoginFailed("a token with a scope that is empty or repeated")


def _is_text(user: str) -> bool:
    """Whether a name can be encoded in UTF-8. JSON strings may contain unpaired surrogates."""
    try:
        user.encode()
    except UnicodeEncodeError:
        return False
    return True


def _trimmed(value: object) -> str:
    """Return a string without surrounding blanks, or "" for a value of another type."""
    return value.strip(_BLANKS) if isinstance(value, str) else ""


def _seconds(claims: Mapping[str, object], name: str) -> float:
    match claims.get(name):
        case bool():
            pass
        case int() | float() as seconds if 0 <= seconds < _SECONDS_MAX:
            return seconds
    raise LoginFailed(f"a token without a time in `{name}`")


def unpack(text: str) -> bytes:
    """Decode base64url without padding; raises ValueError for any other text."""
    try:
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError("invalid base64url") from error
    if base64.urlsafe_b64encode(data).rstrip(b"=").decode() != text:
        raise ValueError("invalid base64url")
    return data


def read_json(data: Buffer) -> Mapping[str, object]:
    """Parse a JSON object without duplicate names; raises ValueError for any other data."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        document = dict(pairs)
        if len(document) != len(pairs):
            raise ValueError("duplicate member name")
        return document

    def refuse(word: str) -> object:
        raise ValueError(word)

    try:
        document: object = json.loads(
            bytes(data).decode(), object_pairs_hook=once, parse_constant=refuse
        )
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document


def read_keys(data: Buffer) -> tuple[PublicKey, ...]:
    """Return the usable signature keys of a JWK set. Other keys are ignored.

    Raises:
        ValueError: The data is not a key set, or has too many keys or no usable key.
    """
    listed = read_json(data).get("keys")
    if not isinstance(listed, list) or len(listed) > KEYS_MAX:
        raise ValueError(f"a list of at most {KEYS_MAX} `keys` expected")
    keys = tuple(key for each in listed if (key := _key_of(each)) is not None)
    if not keys:
        raise ValueError("no key for signatures by a known algorithm")
    return keys


def _key_of(jwk: object) -> PublicKey | None:
    from jwt import PyJWK, PyJWTError

    if not isinstance(jwk, dict) or jwk.get("use", "sig") != "sig":
        return None
    operations = jwk.get("key_ops", ["verify"])
    if not isinstance(operations, list) or "verify" not in operations:
        return None
    kind = str(jwk.get("crv" if jwk.get("kty") == "EC" else "kty"))
    try:
        algorithms, members, size = _KINDS[kind]
        numbers = {name: _number(jwk[name], size) for name in members}
        key = PyJWK({"kty": jwk["kty"], "crv": kind} | numbers).key
    except (PyJWTError, ValueError, TypeError, KeyError):
        return None
    if kind == "RSA" and (
        not RSA_BITS_MIN <= key.key_size <= RSA_BITS_MAX or key.public_numbers().e >= 1 << 32
    ):
        return None
    key_id = jwk.get("kid")
    return PublicKey(
        key_id if isinstance(key_id, str) else None,
        frozenset(name for name in algorithms if jwk.get("alg", name) == name),
        key,
    )


def _number(text: object, size: int) -> str:
    """Return a number in base64url, padded with leading zeros to `size` bytes.

    The result is the same for issuers that add leading zeros and for issuers that omit them.
    """
    if not isinstance(text, str):
        raise TypeError("not a number")
    return base64.urlsafe_b64encode(unpack(text).lstrip(b"\0").rjust(size, b"\0")).decode()


def open_keys(env: Env, url: str, refresh_ms: int) -> "KeyFile | KeyUrl":
    """Open the keys at a URL: `file:`, `https:`, or `http:` on this machine.

    Raises:
        ConfigError: The URL has another form, or provides no usable key.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        raise ConfigError(SETTING, url, _RIGHT) from None
    if "@" in parts.netloc:
        raise ConfigError(SETTING, f"{parts.scheme}://...@{host}", f"{_RIGHT}, without a password")
    if parts.scheme == "file" and not parts.netloc:
        return KeyFile(env, url2pathname(parts.path))
    if not host or not (parts.scheme == "https" or (parts.scheme, host) in _ON_THIS_MACHINE):
        raise ConfigError(SETTING, url, _RIGHT)
    return KeyUrl(env, url, refresh_ms)


def _named(keys: Sequence[PublicKey], key_id: str | None) -> Sequence[PublicKey]:
    return keys if key_id is None else [key for key in keys if key.key_id == key_id]


class KeyFile:
    """Keys in a file. Thread-safe."""

    def __init__(self, env: Env, path: str) -> None:
        """Read the file; raises ConfigError if it can't be read or has no usable key."""
        self._files = env.files
        self._path = path
        self._keys = WatchedFiles(env.files, path, name="keys of tokens", read=self._read)

    def find(self, key_id: str | None) -> Sequence[PublicKey]:
        """Return the keys with an id, or all keys if the id is None."""
        return _named(self._keys.newest(), key_id)

    def _read(self) -> tuple[PublicKey, ...]:
        try:
            return read_keys(read_file(self._files, self._path, limit=BYTES_MAX))
        except OSError as error:
            reason = f"can't be read: {error.strerror or error}"
            raise ConfigError(SETTING, self._path, reason) from error
        except ValueError as error:
            raise ConfigError(SETTING, self._path, f"not a valid JWK set: {error}") from error


class _NoRedirects(HTTPRedirectHandler):
    """Refuses redirects, because only the configured address is trusted."""

    def redirect_request(self, *_args: object, **_more: object) -> None:
        """Refuse the redirect."""


class _Call:
    """HTTP request with a limit for its total time."""

    def __init__(self, url: str) -> None:
        self._socket: socket.socket | None = None
        self._is_late = False
        proxies = ProxyHandler({}) if url.startswith("http:") else ProxyHandler()
        handlers = (_Plain(self._note), _Encrypted(self._note), _NoRedirects())
        self._open = build_opener(proxies, *handlers).open
        self._url = url

    def fetch(self, limit: int) -> bytes:
        """Return at most `limit` bytes of the response.

        Raises:
            OSError, ValueError, HTTPException: The request failed, or the response was not complete
                in time.
        """
        request = Request(self._url, headers={"Accept": "application/json"})  # noqa: S310 - `open_keys` has checked it
        timer = threading.Timer(TIMEOUT_S, self._end)
        timer.daemon = True
        timer.start()
        data = b""
        try:
            with self._open(request, timeout=TIMEOUT_S) as response:
                data = response.read(limit)
        except (OSError, ValueError, HTTPException):
            if not self._is_late:
                raise
        finally:
            timer.cancel()
        if self._is_late:
            raise TimeoutError(f"no complete response within {TIMEOUT_S} s")
        return data

    def _note(self, sock: socket.socket) -> None:
        """Remember the socket for `_end`, and shut it down if the request is late already.

        The reference is needed because the connection object may drop its own reference to the
        socket before the response is complete.
        """
        self._socket = sock
        if self._is_late:
            self._end()

    def _end(self) -> None:
        """Mark the request as late, and shut down its connection if it has one."""
        self._is_late = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


_Note: TypeAlias = Callable[[socket.socket], None]


class _Plain(HTTPHandler):
    def __init__(self, note: _Note) -> None:
        super().__init__()
        self._note = note

    def http_open(self, req: Request) -> HTTPResponse:
        note = self._note

        class Connection(HTTPConnection):
            def connect(self) -> None:
                super().connect()
                note(self.sock)

        return self.do_open(Connection, req)


class _Encrypted(HTTPSHandler):
    def __init__(self, note: _Note) -> None:
        super().__init__()
        self._note = note

    def https_open(self, req: Request) -> HTTPResponse:
        note = self._note

        class Connection(HTTPSConnection):
            def connect(self) -> None:
                HTTPConnection.connect(self)
                context = ssl.create_default_context()
                host = getattr(self, "_tunnel_host", None) or self.host
                # The handshake runs after `note`, so that `_end` can also abort a handshake that
                # takes too long.
                self.sock = context.wrap_socket(
                    self.sock, server_hostname=host, do_handshake_on_connect=False
                )
                note(self.sock)
                self.sock.do_handshake()

        return self.do_open(Connection, req)


class KeyUrl:
    """Keys at a URL. A lookup fetches the keys again after an interval, or for an unknown key id.

    Thread-safe. One thread fetches at a time.
    """

    def __init__(self, env: Env, url: str, refresh_ms: int) -> None:
        """Fetch the keys; raises ConfigError if they can't be fetched or none is usable."""
        self._clock = env.clock
        self._url = url
        self._refresh_ms = refresh_ms
        self._lock = threading.Lock()
        self._valid_ms = max(VALID_INTERVALS * refresh_ms, VALID_MIN_MS)
        self._fetched_ms = self._attempt_ms = self._clock.monotonic_ms()
        self._has_failed = False
        self._keys = self._fetch()

    def find(self, key_id: str | None) -> Sequence[PublicKey]:
        """Return the keys with an id, or all keys if the id is None."""
        keys = self._valid_keys(key_id)
        # A thread does not wait for a fetch by another thread, because a slow server could block
        # all threads.
        if not self._is_due(is_known=bool(keys)) or not self._lock.acquire(blocking=False):
            return keys
        try:
            if self._is_due(is_known=bool(keys)):
                self._refresh()
        finally:
            self._lock.release()
        return self._valid_keys(key_id)

    def _valid_keys(self, key_id: str | None) -> Sequence[PublicKey]:
        """Return the valid keys with an id, or all valid keys if the id is None.

        If the last successful fetch is too old, no key is valid.
        """
        if self._clock.monotonic_ms() - self._fetched_ms >= self._valid_ms:
            return ()
        return _named(self._keys, key_id)

    def _is_due(self, *, is_known: bool) -> bool:
        silent_ms = self._clock.monotonic_ms() - self._attempt_ms
        if not is_known:
            return silent_ms >= AGAIN_MS
        return silent_ms >= (
            min(AGAIN_MS, self._refresh_ms) if self._has_failed else self._refresh_ms
        )

    def _refresh(self) -> None:
        self._attempt_ms = began_ms = self._clock.monotonic_ms()
        try:
            self._keys = self._fetch()
        except ConfigError as error:
            self._has_failed = True
            remaining_s = max(self._fetched_ms + self._valid_ms - began_ms, 0) // 1000
            _LOGGER.warning(
                "can't refresh token keys; the present keys stay valid for another %d s: %s",
                remaining_s,
                error,
            )
        else:
            self._has_failed = False
            self._fetched_ms = began_ms

    def _fetch(self) -> tuple[PublicKey, ...]:
        try:
            data = _Call(self._url).fetch(BYTES_MAX + 1)
        except (OSError, ValueError, HTTPException) as error:
            raise ConfigError(SETTING, self._url, f"can't be fetched: {error}") from error
        if len(data) > BYTES_MAX:
            raise ConfigError(SETTING, self._url, f"has more than {BYTES_MAX} bytes")
        try:
            return read_keys(data)
        except ValueError as error:
            raise ConfigError(SETTING, self._url, f"not a valid JWK set: {error}") from error
