"""`ObjectStore` over obstore: S3 and compatible stores, Google, Azure, memory.

This module also sorts a store's options into network, retry and store options.
"""

import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from tidelog.env import FileSystem
from tidelog.errors import ConfigError, MissingDependency, StorageFailure
from tidelog.lazy_dataclass import dataclass
from tidelog.objects.store import (
    NO_MODIFIED,
    PART_BYTES,
    InfoList,
    NameList,
    ObjectInfo,
    credentials_step,
    endpoint_step,
    failure,
    file_parts,
    join_key,
)
from tidelog.types import Buffer

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta, PutMode
    from obstore.store import MemoryStore
    from obstore.store import ObjectStore as Handle


# Defaults of time limits and retries. Without the limits, a call might wait forever.
TIMEOUT_MS: Final = 60_000

CONNECT_TIMEOUT_MS: Final = 5_000
RETRIES: Final = 5
RETRY_TIMEOUT_MS: Final = 120_000

_NUMBERS: Final = {
    "timeout_ms": (1, 3_600_000),
    "connect_timeout_ms": (1, 600_000),
    "retries": (0, 100),
    "retry_timeout_ms": (1, 3_600_000),
}

_CLIENT_TEXTS: Final = frozenset({"proxy_url", "proxy_ca_certificate", "root_certificate"})
_CLIENT_FLAGS: Final = frozenset({"allow_http", "allow_invalid_certificates"})

_ENDPOINT_OPTIONS: Final = (
    "endpoint",
    "endpoint_url",
    "aws_endpoint",
    "aws_endpoint_url",
    "aws_endpoint_url_s3",
    "azure_endpoint",
    "azure_storage_endpoint",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """Parsed options.

    Attributes:
        timeout_ms: Maximum duration of one request.
        connect_timeout_ms: Maximum duration of connecting to the server.
        retries: Maximum number of retries of a request.
        retry_timeout_ms: Time since the first attempt after which a request is not retried.
        client: Other network options: proxies, certificates.
        profile: Name of a profile in AWS's shared files; None to use keys and roles.
        store: Options of the store itself: access keys, region, endpoint ...
    """

    timeout_ms: int = TIMEOUT_MS
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS
    retries: int = RETRIES
    retry_timeout_ms: int = RETRY_TIMEOUT_MS
    client: Mapping[str, str | bool] = field(default_factory=dict)
    profile: str | None = None
    store: Mapping[str, str] = field(default_factory=dict, repr=False)

    def client_options(self) -> dict[str, str | bool | timedelta]:
        """Return the options of obstore's client."""
        times: dict[str, str | bool | timedelta] = {
            "timeout": timedelta(milliseconds=self.timeout_ms),
            "connect_timeout": timedelta(milliseconds=self.connect_timeout_ms),
        }
        return times | dict(self.client)

    def retry_config(self, retries: int) -> dict[str, object]:
        """Return obstore's options for retries, with this maximum number of retries."""
        return {
            "max_retries": retries,
            "retry_timeout": timedelta(milliseconds=self.retry_timeout_ms),
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=5),
                "base": 2,
            },
        }


def read_settings(options: Mapping[str, str]) -> StoreSettings:
    """Parse options.

    Raises:
        ConfigError: A number or flag is invalid.
    """
    lowered = {name.lower(): value for name, value in options.items()}
    numbers = {name: _number(name, lowered[name]) for name in _NUMBERS if name in lowered}
    client: dict[str, str | bool] = {
        name: _flag(name, value) if name in _CLIENT_FLAGS else value
        for name, value in lowered.items()
        if name in _CLIENT_FLAGS | _CLIENT_TEXTS
    }
    if _has_plain_endpoint(lowered):
        client.setdefault("allow_http", True)
    ours = _NUMBERS.keys() | _CLIENT_TEXTS | _CLIENT_FLAGS | {"profile"}
    store = {name: value for name, value in lowered.items() if name not in ours}
    has_keys = any(name.endswith("access_key_id") for name in store)
    profile = lowered.get("profile") or (None if has_keys else _profile_of_environment())
    return StoreSettings(**numbers, client=client, profile=profile, store=store)


def _profile_of_environment() -> str | None:
    has_keys = "AWS_ACCESS_KEY_ID" in os.environ
    return None if has_keys else os.environ.get("AWS_PROFILE")


def _has_plain_endpoint(options: Mapping[str, str]) -> bool:
    """Return whether an endpoint is an http:// URL, which needs connections without TLS.

    Endpoints come from the options or, if the options have no endpoint, from the environment.
    """
    endpoints = [options[name] for name in _ENDPOINT_OPTIONS if name in options]
    named = endpoints or [os.environ.get(name.upper(), "") for name in _ENDPOINT_OPTIONS[2:]]
    return any(endpoint.startswith("http://") for endpoint in named)


def _number(name: str, text: str) -> int:
    low, high = _NUMBERS[name]
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise ConfigError(f"store.{name}", text, f"must be a whole number from {low} to {high}")
    return value


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"store.{name}", text, "must be true or false")
    return text.lower() == "true"


# Number of parts that are uploaded at the same time. A third part is being read meanwhile, so three
# parts are in memory.
_CONCURRENCY: Final = 2

_BACKOFF_S: Final = 0.1
_BACKOFF_S_MAX: Final = 5.0
_Result = TypeVar("_Result")
_memory: Final[dict[str, "MemoryStore"]] = {}
_memory_lock: Final = threading.Lock()


def open_obstore(url: str, family: str, options: Mapping[str, str]) -> "ObstoreStore":
    """Create the store at a URL of one of obstore's families; see `open_store`."""
    try:
        import obstore.exceptions as failures
    except ImportError as error:
        raise MissingDependency(f"{url} needs obstore: pip install 'tidelog[objects]'") from error
    settings = read_settings(options)
    try:
        return ObstoreStore(url, family, settings)
    except failures.UnknownConfigurationKeyError as error:
        reason = "not a setting of this store; docs/objects.md lists the usual settings"
        raise ConfigError(f"store.{_unknown_key(str(error))}", None, reason) from error
    except failures.BaseError as error:
        raise failure(url, "open", error, endpoint_step(family)) from error


def _unknown_key(text: str) -> str:
    parts = text.splitlines()[0].split("'")
    return parts[1] if len(parts) > 2 else "?"


def _make_handle(url: str, family: str, settings: StoreSettings, retries: int) -> "Handle":
    from obstore.store import from_url

    if family == "memory":
        return _memory_handle(url)
    profile = settings.profile if family == "s3" else None
    more = {} if profile is None else _profile_provider(profile)
    return from_url(  # type: ignore[no-any-return, call-overload] # keywords are checked above
        url,
        config=dict(settings.store),
        client_options=settings.client_options(),
        retry_config=settings.retry_config(retries),
        **more,
    )


def _memory_handle(url: str) -> "Handle":
    """Return the in-memory store named in the URL; it exists until the process ends."""
    from obstore.store import MemoryStore

    name = url.partition("://")[2].partition("/")[0]
    with _memory_lock:
        return _memory.setdefault(name, MemoryStore())


def _profile_provider(profile: str) -> dict[str, object]:
    """Return credentials from AWS's shared files, which obstore itself does not read."""
    try:
        import boto3
        from botocore.exceptions import BotoCoreError
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise MissingDependency(
            f"AWS profile {profile} needs boto3: pip install boto3, or set AWS_ACCESS_KEY_ID and"
            " AWS_SECRET_ACCESS_KEY"
        ) from error
    try:
        session = boto3.Session(profile_name=profile)
        return {"credential_provider": Boto3CredentialProvider(session)}
    # ValueError means that the profile has no credentials
    except (BotoCoreError, ValueError) as error:
        raise ConfigError("store.profile", profile, f"unusable for boto3: {error}") from error


class ObstoreStore:
    """An `ObjectStore` over obstore.

    Attributes:
        url: URL of the store.
    """

    def __init__(self, url: str, family: str, settings: StoreSettings) -> None:
        self.url = url
        self._family = family
        self._settings = settings
        # Several `memory://` URLs may name the same store. The path of a `memory://` URL is a
        # folder in its store, so keys begin with this path. For other URLs, obstore adds the path
        # to the keys.
        rest = url.partition("://")[2]
        self._prefix = rest.partition("/")[2].strip("/") if family == "memory" else ""
        self._store = _make_handle(url, family, settings, settings.retries)
        self._once = _make_handle(url, family, settings, 0)

    def _key(self, key: str) -> str:
        return join_key(self._prefix, key)

    def _where(self, key: str) -> str:
        return f"{self.url}/{key}" if key else self.url

    def _raise_missing(self, key: str, reason: str = "No such object") -> NoReturn:
        raise FileNotFoundError(errno.ENOENT, reason, self._where(key))

    @contextmanager
    def _typed(self, operation: str, key: str) -> Iterator[None]:
        """Convert errors of the `with` block to FileNotFoundError (no object) or StorageFailure."""
        import obstore.exceptions as failures

        try:
            yield
        except FileNotFoundError:
            self._raise_missing(key)
        except failures.PreconditionError:
            self._raise_missing(key, "Replaced by another object")
        except (failures.PermissionDeniedError, failures.UnauthenticatedError) as error:
            step = credentials_step(self._family)
            raise failure(self._where(key), operation, error, step) from error
        except failures.BaseError as error:
            is_about_keys = "credential" in str(error).lower() or "metadata" in str(error).lower()
            step = (credentials_step if is_about_keys else endpoint_step)(self._family)
            raise failure(self._where(key), operation, error, step) from error
        except (OSError, NotImplementedError) as error:
            raise failure(self._where(key), operation, error) from error

    def _info(self, meta: "ObjectMeta", key: str | None = None) -> ObjectInfo:
        at = len(self._prefix) + 1 if self._prefix else 0
        etag = meta["e_tag"] or f"{meta['size']}-{meta['last_modified'].timestamp()}"
        if self._family == "az" and not etag.startswith(('"', "W/")):
            etag = f'"{etag}"'  # listings omit the quotes around the etag, but conditions need them
        modified_ms = int(meta["last_modified"].timestamp() * 1000)
        return ObjectInfo(
            meta["path"][at:] if key is None else key, meta["size"], etag, modified_ms
        )

    # -- reading -----------------------------------------------------------------------------

    def head(self, key: str) -> ObjectInfo | None:
        """Return the properties of an object; None if the object does not exist."""
        meta = self._meta(key)
        return None if meta is None else self._info(meta, key)

    def _meta(self, key: str) -> "ObjectMeta | None":
        import obstore

        try:
            with self._typed("head", key):
                return obstore.head(self._store, self._key(key))
        except FileNotFoundError:
            return None

    def _get(self, key: str, options: "GetOptions | None" = None) -> tuple[Buffer, ObjectInfo]:
        import obstore

        with self._typed("read", key):
            response = obstore.get(self._store, self._key(key), options=options)
            meta = response.meta
            return memoryview(response.bytes()), self._info(meta, key)

    def read(self, key: str, start: int = 0, size: int | None = None) -> bytes:
        """Return `size` bytes from `start`; fewer only at the object's end.

        If `size` is None, return all bytes from `start` on.
        """
        if start == 0 and size is None:
            return bytes(self._get(key)[0])
        if size == 0:
            return b"" if self.head(key) is not None else self._raise_missing(key)
        try:
            return bytes(self._get(key, _ranged(start, size))[0])
        except StorageFailure:
            # Stores refuse a range after the object's end, but with different errors.
            info = self.head(key)
            if info is not None and start >= info.size:
                return b""
            raise

    def read_with_info(self, key: str) -> tuple[bytes, ObjectInfo]:
        """Return a whole object and the properties of this content; raises FileNotFoundError."""
        data, info = self._get(key)
        return bytes(data), info

    def read_range(
        self, key: str, start: int, size: int, *, etag: str | None = None
    ) -> tuple[Buffer, ObjectInfo]:
        """Return at most `size` bytes from `start`, and the object's properties."""
        assert size > 0
        return self._get(key, _ranged(start, size, etag))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield all objects in the folder and below it."""
        import obstore

        pages = self._listed(prefix, lambda: iter(obstore.list(self._store, self._key(prefix))))
        while (page := self._listed(prefix, lambda: next(pages, None))) is not None:
            for meta in page:
                yield self._info(meta)

    def list_dir(self, prefix: str) -> tuple[InfoList, NameList]:
        """Return the objects directly in the folder, and its subfolders' names; both sorted."""
        import obstore

        listing = self._listed(
            prefix, lambda: obstore.list_with_delimiter(self._store, self._key(prefix) or None)
        )
        objects = [self._info(meta) for meta in listing["objects"]]
        folders = [path.rstrip("/").rpartition("/")[2] for path in listing["common_prefixes"]]
        return sorted(objects), sorted(folders)

    def _listed(self, prefix: str, action: Callable[[], _Result]) -> _Result:
        try:
            with self._typed("list", prefix):
                return action()
        except FileNotFoundError as error:
            # A missing folder is listed as empty, so this error means that the bucket is missing.
            step = endpoint_step(self._family)
            raise failure(self._where(prefix), "list", error, step) from error

    # -- writing -----------------------------------------------------------------------------

    def put(self, key: str, data: bytes) -> ObjectInfo:
        """Write an object, completely or not at all; an existing object is replaced."""
        return self._put(key, data, len(data))

    def _put(self, key: str, data: bytes | Iterator[bytes], size: int) -> ObjectInfo:
        import obstore

        try:
            with self._typed("put", key):
                written = obstore.put(
                    self._store,
                    self._key(key),
                    data,
                    chunk_size=PART_BYTES,
                    max_concurrency=_CONCURRENCY,
                )
        except FileNotFoundError as error:
            raise failure(self._where(key), "put", error, endpoint_step(self._family)) from error
        return ObjectInfo(key, size, written["e_tag"] or "", NO_MODIFIED)

    def put_file(self, key: str, fs: FileSystem, path: str) -> ObjectInfo:
        """Copy a finished file in parts, with bounded memory; an incomplete copy is invisible."""
        size = fs.stat(path).size
        if size <= PART_BYTES:
            return self.put(key, b"".join(file_parts(fs, path, size)))
        return self._put(key, file_parts(fs, path, size), size)

    def put_if(self, key: str, data: bytes, *, etag: str | None) -> ObjectInfo | None:
        """Compare and swap: write only if the object still has this etag."""
        mode = self._condition(key, etag)
        return None if mode is None else self._put_if(key, data, mode)

    def _condition(self, key: str, etag: str | None) -> "PutMode | None":
        """Return the store's condition for an etag; None if the put is known to fail."""
        if etag is None:
            return "create"
        if self._family != "gs":
            return {"e_tag": etag}
        # Google's condition is a generation, not an etag. So the etag is compared here, and the
        # condition is the object's current generation.
        meta = self._meta(key)
        if meta is None or meta["e_tag"] != etag:
            return None
        version = meta["version"]
        return {"e_tag": etag} if version is None else {"e_tag": etag, "version": version}

    def _put_if(self, key: str, data: bytes, mode: "PutMode") -> ObjectInfo | None:
        """Put with retries; after a lost response, find out whether the object was stored.

        If the response to a put is lost and the retry is refused, either an earlier attempt or
        another writer has stored the object. To find out which, the stored bytes are compared with
        `data`.
        """
        import obstore
        import obstore.exceptions as failures

        is_unsure = False
        for attempt in range(self._settings.retries + 1):
            try:
                written = obstore.put(
                    self._once, self._key(key), data, mode=mode, use_multipart=False
                )
                return ObjectInfo(key, len(data), written["e_tag"] or "", NO_MODIFIED)
            except (failures.AlreadyExistsError, failures.PreconditionError):
                return self._own_bytes(key, data) if is_unsure else None
            except failures.GenericError as error:
                if attempt == self._settings.retries:
                    with self._typed("put", key):
                        raise error
                is_unsure = True
                threading.Event().wait(min(_BACKOFF_S * 2**attempt, _BACKOFF_S_MAX))
            except FileNotFoundError as error:
                if mode != "create":
                    return None  # another writer has deleted the object
                step = endpoint_step(self._family)
                raise failure(self._where(key), "put", error, step) from error
            except (failures.BaseError, NotImplementedError):
                with self._typed("put", key):
                    raise
        raise AssertionError("the last attempt returns or raises")

    def _own_bytes(self, key: str, data: bytes) -> ObjectInfo | None:
        try:
            content, info = self.read_with_info(key)
        except FileNotFoundError:
            return None
        return info if content == data else None

    def delete(self, key: str) -> None:
        """Remove an object; a missing object is ignored."""
        import obstore

        try:
            with self._typed("delete", key):
                obstore.delete(self._store, self._key(key))
        except FileNotFoundError:
            return


def _ranged(start: int, size: int | None, etag: str | None = None) -> "GetOptions":
    options: GetOptions = {}
    if size is None:
        options["range"] = {"offset": start}
    else:
        options["range"] = (start, start + size)
    if etag is not None:
        options["if_match"] = etag
    return options
