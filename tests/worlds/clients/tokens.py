"""Tokens of OAUTHBEARER in the form that each client needs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from aiokafka.abc import AbstractTokenProvider as AioProvider
from kafka.net.sasl.oauth import AbstractTokenProvider
from tests.worlds.clients.secured import Key

from tidelog.env import os_env

LIFE_S: Final = 3600


def now_s() -> float:
    """Return wall time in seconds."""
    return os_env().clock.now_ms() / 1000


def claims(**more: object) -> Mapping[str, object]:
    """Return claims that are valid for an hour."""
    begin = now_s()
    return {"sub": "alice", "aud": "kafka", "iat": begin, "exp": begin + LIFE_S, **more}


class _Provider(AbstractTokenProvider):  # type: ignore[misc]  # untyped
    """Provides the token to kafka-python."""

    def __init__(self, made: str) -> None:
        self._made = made

    def token(self) -> str:
        return self._made


class _AioProvider(AioProvider):  # type: ignore[misc]  # untyped
    """Provides the token to aiokafka."""

    def __init__(self, made: str) -> None:
        self._made = made

    async def token(self) -> str:
        return self._made


@dataclass(frozen=True, kw_only=True)
class BearerKey(Key):
    """Credentials that are a token, in the form that each client needs."""

    made: str

    def librdkafka(self, bootstrap: str) -> dict[str, str | int | float | bool]:
        given: dict[str, object] = {
            **super().librdkafka(bootstrap),
            "oauth_cb": lambda _: (self.made, now_s() + LIFE_S),
        }
        return given  # type: ignore[return-value]  # one of them is a function

    def kafka_python(self, bootstrap: str) -> dict[str, object]:
        return super().kafka_python(bootstrap) | {"sasl_oauth_token_provider": _Provider(self.made)}

    def aiokafka(self, bootstrap: str) -> dict[str, object]:
        provider = _AioProvider(self.made)
        return super().aiokafka(bootstrap) | {"sasl_oauth_token_provider": provider}


def bearer(made: str) -> bytes:
    """Return a client's first OAUTHBEARER message, which contains the token."""
    return f"n,,\x01auth=Bearer {made}\x01\x01".encode()
