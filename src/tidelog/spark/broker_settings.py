"""`kafka.*` options, converted to settings of librdkafka and of tidelog's wire client.

Settings without effect on a read are ignored with a warning. If `security.protocol` is PLAINTEXT
and the wire client supports all settings that have an effect, batches are fetched directly from the
leaders. Otherwise, records are read through librdkafka; a setting that librdkafka does not support
raises ConfigError.
"""

import logging
from collections.abc import Mapping
from dataclasses import field
from functools import cache
from typing import TYPE_CHECKING, Final

from tidelog.env import os_env
from tidelog.errors import (
    ConfigError,
)
from tidelog.lazy_dataclass import dataclass
from tidelog.remote.client import TIMEOUT_MAX_S
from tidelog.remote.client_settings import POLL_RECORDS, WITHOUT_MEANING, translate_settings
from tidelog.remote.cluster import TIMEOUT_S
from tidelog.remote.partition_fetch import FetchSettings
from tidelog.spark.options import SourceOptions

if TYPE_CHECKING:
    from tidelog.remote.rows import ConsumeSettings


# Settings of consumers that the wire client applies. Their defaults (`FetchSettings`) differ from
# the defaults of Kafka's consumer, because a task reads only one partition on its connection.
_NUMBERS: Final = {
    "fetch.max.wait.ms": "max_wait_ms",
    "fetch.min.bytes": "min_bytes",
    "fetch.max.bytes": "max_bytes",
    "max.partition.fetch.bytes": "partition_max_bytes",
}

_TIMEOUTS: Final = ("request.timeout.ms", "default.api.timeout.ms")
_PLAIN: Final = frozenset({*_NUMBERS, *_TIMEOUTS, "security.protocol", "client.id"})

# Settings of Kafka's consumer that librdkafka has under another name.
_RENAMED: Final = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
}

# Settings of Kafka's clients that have no effect on a read. Most of them are for writes, group
# membership or offset commits, which a read does not use. A read ignores such settings with a
# warning, so that an application can use one set of settings for all its clients.
_IGNORED: Final = frozenset(
    {
        *("acks", "linger.ms", "batch.size", "buffer.memory", "compression.type", "max.block.ms"),
        *("compression.gzip.level", "compression.lz4.level", "compression.zstd.level", "retries"),
        *("delivery.timeout.ms", "max.request.size", "max.in.flight.requests.per.connection"),
        *("enable.idempotence", "transactional.id", "transaction.timeout.ms", "partitioner.class"),
        *("partitioner.ignore.keys", "partitioner.adaptive.partitioning.enable"),
        *("partitioner.availability.timeout.ms", "group.instance.id", "group.protocol"),
        *("group.remote.assignor", "session.timeout.ms", "heartbeat.interval.ms"),
        *("max.poll.interval.ms", "partition.assignment.strategy", "auto.commit.interval.ms"),
        *("allow.auto.create.topics", "exclude.internal.topics", "check.crcs"),
        *("metric.reporters", "metrics.num.samples", "metrics.recording.level"),
        *("metrics.sample.window.ms", "enable.metrics.push", "auto.include.jmx.reporter"),
    }
)

# Settings that only a read through librdkafka uses. A direct fetch ignores `group.id` and
# `max.poll.records`, because it has no group and does not poll.
_IGNORED_DIRECTLY: Final = frozenset({"group.id", "max.poll.records"})

_LOG: Final = logging.getLogger("tidelog.spark")
_POLL_RECORDS: Final = "max.poll.records"
_GROUP: Final = "group.id"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """Settings of requests to brokers, for one read.

    Attributes:
        client: Settings of librdkafka.
        fetch: Settings of direct fetches; None if records are read through librdkafka.
        timeout_s: Timeout of each request through librdkafka, in seconds.
        poll_records: Maximum number of records that librdkafka returns per poll.
        group: Group id for librdkafka; None for a random group id.
    """

    # `client` may contain passwords, so the repr omits it.
    client: Mapping[str, str] = field(repr=False)
    fetch: FetchSettings | None
    timeout_s: float
    poll_records: int
    group: str | None


def read_settings(options: SourceOptions) -> BrokerSettings:
    """Return the settings of requests to brokers for a read.

    Raises:
        ConfigError: A setting can't be applied; the message gives the reason.
    """
    ignored = sorted(_IGNORED & options.client.keys())
    texts = {name: text for name, text in options.client.items() if name not in _IGNORED}
    timeout_s = request_timeout_s(texts)
    for name in _TIMEOUTS:
        texts.pop(name, None)
    is_plain = texts.keys() <= _PLAIN | _IGNORED_DIRECTLY and (
        texts.get("security.protocol", "PLAINTEXT").upper() == "PLAINTEXT"
    )
    _warn(tuple(ignored + sorted(_IGNORED_DIRECTLY & texts.keys() if is_plain else ())))
    fetch = _fetch(texts, options) if is_plain else None
    poll_records = _number(_POLL_RECORDS, texts.pop(_POLL_RECORDS, str(POLL_RECORDS)))
    group = texts.pop(_GROUP, None)
    for name in texts:
        if name in WITHOUT_MEANING:
            raise ConfigError(f"kafka.{name}", None, "only Java's clients support it; leave it out")
    renamed = {_RENAMED.get(name, name): value for name, value in texts.items()}
    return BrokerSettings(
        client=translate_settings(renamed),
        fetch=fetch,
        timeout_s=timeout_s,
        poll_records=poll_records,
        group=group,
    )


@cache
def _warn(ignored: tuple[str, ...]) -> None:
    """Log the ignored settings, once per process for the same settings."""
    if ignored:
        names = ", ".join(f"kafka.{name}" for name in ignored)
        _LOG.warning("ignored: %s (without effect on this read)", names)


def _fetch(texts: Mapping[str, str], options: SourceOptions) -> FetchSettings:
    numbers = {_NUMBERS[name]: _number(name, texts[name]) for name in _NUMBERS if name in texts}
    return FetchSettings(
        isolation=options.isolation,
        client_id=texts.get("client.id", "tidelog"),
        timeout_ms=options.poll_timeout_ms,
        **numbers,
    )


def request_timeout_s(texts: Mapping[str, str]) -> float:
    """Return the timeout of requests to brokers, in seconds, from client settings.

    The result is the largest of the given timeouts, but at most `TIMEOUT_MAX_S`. If no timeout is
    given, the result is `TIMEOUT_S`.

    Raises:
        ConfigError: A timeout is not a number from 1 to 2147483647.
    """
    timeouts = [_number(name, texts[name]) for name in _TIMEOUTS if name in texts]
    return min(max(timeouts) / 1000, TIMEOUT_MAX_S) if timeouts else TIMEOUT_S


def _number(name: str, text: str) -> int:
    if not text.strip().isdecimal() or not 1 <= int(text) < 2**31:
        raise ConfigError(f"kafka.{name}", text, "a number from 1 to 2147483647")
    return int(text)


def consume_settings(options: SourceOptions, settings: BrokerSettings) -> "ConsumeSettings":
    """Return the settings of a read through librdkafka."""
    from tidelog.remote.rows import ConsumeSettings

    own = f"{options.group_prefix}-{os_env().random.getrandbits(64):x}"
    return ConsumeSettings(
        bootstrap=options.bootstrap,
        client=settings.client,
        timeout_s=settings.timeout_s,
        progress_timeout_ms=options.poll_timeout_ms,
        poll_records=settings.poll_records,
        group=settings.group or own,
    )
