"""Where the keys of tokens come from: a file that is read again when it changes, or an address.

Both are asked in threads beside the loop: each log-in by a token is checked there.
"""

import logging
import threading
from collections.abc import Sequence
from http.client import HTTPException
from typing import Final
from urllib.parse import urlsplit
from urllib.request import (
    HTTPRedirectHandler,
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
TIMEOUT_S: Final = 10
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
        self._open = build_opener(
            ProxyHandler({}) if url.startswith("http:") else ProxyHandler(), _NoRedirects
        ).open
        self._tried_ms = self._clock.monotonic_ms()
        self._keys = self._fetch()

    def find(self, key_id: str | None) -> Sequence[PublicKey]:
        """The keys of a name, all for None."""
        found = _named(self._keys, key_id)
        # Nobody waits for another one's fetch: all threads could come to wait for a slow address.
        if not self._is_due(is_known=bool(found)) or not self._lock.acquire(blocking=False):
            return found
        try:
            if self._is_due(is_known=bool(found)):
                self._refresh()
        finally:
            self._lock.release()
        return _named(self._keys, key_id)

    def _is_due(self, *, is_known: bool) -> bool:
        silent_ms = self._clock.monotonic_ms() - self._tried_ms
        return silent_ms >= (self._refresh_ms if is_known else AGAIN_MS)

    def _refresh(self) -> None:
        self._tried_ms = self._clock.monotonic_ms()
        try:
            self._keys = self._fetch()
        except ConfigError as error:
            _LOGGER.warning("the old keys of tokens stay: %s", error)

    def _fetch(self) -> tuple[PublicKey, ...]:
        asked = Request(self._url, headers={"Accept": "application/json"})  # noqa: S310 - `open_keys`
        try:
            with self._open(asked, timeout=TIMEOUT_S) as answer:
                data: bytes = answer.read(BYTES_MAX + 1)
        except (OSError, ValueError, HTTPException) as error:
            raise ConfigError(SETTING, self._url, f"can't be fetched: {error}") from error
        if len(data) > BYTES_MAX:
            raise ConfigError(SETTING, self._url, f"has more than {BYTES_MAX} bytes")
        try:
            return read_keys(data)
        except ValueError as error:
            raise ConfigError(SETTING, self._url, f"is no set of keys: {error}") from error
