"""Where the keys of tokens come from: a file that is read again when it changes, or an address.

Both are asked in threads beside the loop: each log-in by a token is checked there.
"""

import logging
import socket
import ssl
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Final, TypeAlias
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
from tidelog.server.security.jwks import PublicKey, read_keys
from tidelog.server.security.watched import Watched
from tidelog.storage.files import read_file

_LOGGER: Final = logging.getLogger("tidelog.server")
SETTING: Final = "sasl.oauthbearer.jwks.endpoint.url"
BYTES_MAX: Final = 1 << 20
# For all of an answer, however many pieces it comes in; less than a connection has to log in.
TIMEOUT_S: float = 5
# Keys count for so many intervals behind the last time that they could be fetched: a key that was
# withdrawn must not be valid for as long as its address is out of order.
KEPT_INTERVALS: Final = 4
KEPT_MIN_MS: Final = 3_600_000
# A key that nobody knows may be new: it is asked for, but not more often.
AGAIN_MS: Final = 10_000
_ON_THIS_MACHINE: Final = {("http", host) for host in ("127.0.0.1", "::1", "localhost")}
_RIGHT: Final = "must be file:///PATH or https://HOST/..."


def open_keys(env: Env, url: str, refresh_ms: int) -> "KeyFile | KeyUrl":
    """The keys at a URL: `file:`, `https:`, or `http:` on this machine.

    Raises:
        ConfigError: Another URL, or keys can't be had from it.
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
    """Keys in a file. Any thread may ask."""

    def __init__(self, env: Env, path: str) -> None:
        """Read the file; raises ConfigError."""
        self._files = env.files
        self._path = path
        self._keys = Watched(env.files, path, what="keys of tokens", read=self._read)

    def find(self, key_id: str | None) -> Sequence[PublicKey]:
        """The keys of a name, all for None."""
        return _named(self._keys.newest(), key_id)

    def _read(self) -> tuple[PublicKey, ...]:
        try:
            return read_keys(read_file(self._files, self._path, limit=BYTES_MAX))
        except OSError as error:
            reason = f"can't be read: {error.strerror or error}"
            raise ConfigError(SETTING, self._path, reason) from error
        except ValueError as error:
            raise ConfigError(SETTING, self._path, f"is no set of keys: {error}") from error


class _NoRedirects(HTTPRedirectHandler):
    """Another place is not the one that was trusted."""

    def redirect_request(self, *_args: object, **_more: object) -> None:
        """Nowhere else."""


class _Call:
    """One request over HTTP, which ends when its time is over."""

    def __init__(self, url: str) -> None:
        self._socket: socket.socket | None = None
        self._is_late = False
        proxies = ProxyHandler({}) if url.startswith("http:") else ProxyHandler()
        handlers = (_Plain(self._note), _Encrypted(self._note), _NoRedirects())
        self._open = build_opener(proxies, *handlers).open
        self._url = url

    def fetch(self, limit: int) -> bytes:
        """At most `limit` bytes of the answer.

        Raises:
            OSError, ValueError, HTTPException: It can't be had in time.
        """
        asked = Request(self._url, headers={"Accept": "application/json"})  # noqa: S310 - `open_keys`
        timer = threading.Timer(TIMEOUT_S, self._end)
        timer.daemon = True
        timer.start()
        data = b""
        try:
            with self._open(asked, timeout=TIMEOUT_S) as answer:
                data = answer.read(limit)
        except (OSError, ValueError, HTTPException):
            if not self._is_late:
                raise
        finally:
            timer.cancel()
        if self._is_late:
            raise TimeoutError(f"the whole answer did not come within {TIMEOUT_S} s")
        return data

    def _note(self, made: socket.socket) -> None:
        """A socket to shut down at the end: a connection lets go of its own before the answer."""
        self._socket = made

    def _end(self) -> None:
        """End whatever the call waits for."""
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
                # The handshake behind the note: it, too, may come a byte at a time.
                self.sock = context.wrap_socket(
                    self.sock, server_hostname=host, do_handshake_on_connect=False
                )
                note(self.sock)
                self.sock.do_handshake()

        return self.do_open(Connection, req)


class KeyUrl:
    """Keys at an address: asked for again from time to time, and for a key that is not known.

    Any thread may ask; one of them fetches.
    """

    def __init__(self, env: Env, url: str, refresh_ms: int) -> None:
        """Fetch them; raises ConfigError."""
        self._clock = env.clock
        self._url = url
        self._refresh_ms = refresh_ms
        self._lock = threading.Lock()
        self._kept_ms = max(KEPT_INTERVALS * refresh_ms, KEPT_MIN_MS)
        self._fetched_ms = self._tried_ms = self._clock.monotonic_ms()
        self._has_failed = False
        self._keys = self._fetch()

    def find(self, key_id: str | None) -> Sequence[PublicKey]:
        """The keys of a name, all for None."""
        found = self._known(key_id)
        # Nobody waits for another one's fetch: all threads could come to wait for a slow address.
        if not self._is_due(is_known=bool(found)) or not self._lock.acquire(blocking=False):
            return found
        try:
            if self._is_due(is_known=bool(found)):
                self._refresh()
        finally:
            self._lock.release()
        return self._known(key_id)

    def _known(self, key_id: str | None) -> Sequence[PublicKey]:
        """The keys of a name, none where they could not be fetched for too long."""
        if self._clock.monotonic_ms() - self._fetched_ms >= self._kept_ms:
            return ()
        return _named(self._keys, key_id)

    def _is_due(self, *, is_known: bool) -> bool:
        silent_ms = self._clock.monotonic_ms() - self._tried_ms
        if not is_known:
            return silent_ms >= AGAIN_MS
        return silent_ms >= (
            min(AGAIN_MS, self._refresh_ms) if self._has_failed else self._refresh_ms
        )

    def _refresh(self) -> None:
        self._tried_ms = began_ms = self._clock.monotonic_ms()
        try:
            self._keys = self._fetch()
        except ConfigError as error:
            self._has_failed = True
            left_s = max(self._fetched_ms + self._kept_ms - began_ms, 0) // 1000
            _LOGGER.warning("the old keys of tokens stay for %d s more: %s", left_s, error)
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
            raise ConfigError(SETTING, self._url, f"is no set of keys: {error}") from error
