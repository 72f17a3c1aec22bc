"""Options of a store, sorted by whom they are for: the network, the repetitions, the store."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from tidelog.errors import ConfigError

# Every one of these bounds a wait that would otherwise have no end.
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
    """Options, read.

    Attributes:
        timeout_ms: One request may take so long.
        connect_timeout_ms: Reaching the server may take so long.
        retries: How often a request is repeated where that may help.
        retry_timeout_ms: After so long it is not repeated again.
        client: What else is for the network: proxies, certificates.
        profile: Name of a profile in AWS's shared files; None to use keys and roles.
        store: What is for the store itself: keys, region, endpoint ...
    """

    timeout_ms: int = TIMEOUT_MS
    connect_timeout_ms: int = CONNECT_TIMEOUT_MS
    retries: int = RETRIES
    retry_timeout_ms: int = RETRY_TIMEOUT_MS
    client: Mapping[str, str | bool] = field(default_factory=dict)
    profile: str | None = None
    store: Mapping[str, str] = field(default_factory=dict, repr=False)

    def client_options(self) -> dict[str, str | bool | timedelta]:
        """For obstore's client."""
        times: dict[str, str | bool | timedelta] = {
            "timeout": timedelta(milliseconds=self.timeout_ms),
            "connect_timeout": timedelta(milliseconds=self.connect_timeout_ms),
        }
        return times | dict(self.client)

    def retry_config(self, retries: int) -> dict[str, object]:
        """For obstore's retries, of which there are to be so many."""
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
    """The settings that options give.

    Raises:
        ConfigError: A number or a flag that is none.
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
    """Whether the endpoint that was named has no encryption: who writes http:// means it."""
    given = [options[name] for name in _ENDPOINT_OPTIONS if name in options]
    named = given or [os.environ.get(name.upper(), "") for name in _ENDPOINT_OPTIONS[2:]]
    return any(endpoint.startswith("http://") for endpoint in named)


def _number(name: str, text: str) -> int:
    low, high = _NUMBERS[name]
    try:
        value = int(text)
    except ValueError:
        value = low - 1
    if not low <= value <= high:
        raise ConfigError(f"store.{name}", text, f"a whole number from {low} to {high}")
    return value


def _flag(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"store.{name}", text, "true or false")
    return text.lower() == "true"
