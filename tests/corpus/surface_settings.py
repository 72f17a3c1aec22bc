"""Pages `topic-settings` and `broker-settings` of the surface: defaults, and effects of values.

Each setting is tried with the same values. For an accepted value, a topic's entry shows the value
as the topic then lists it. A broker reports all refused values at once, with one error for each
setting.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource, ConfigSource
from tests.corpus.book import Entry
from tests.corpus.shell import run

import tidelog

VALUES: Final = (
    *("", "-2", "-1", "0", "1", "9", "22", "100", "1024", "86400000", "2147483647", "2147483648"),
    *("9223372036854775807", "9223372036854775808", "0.5", "1.5", "-0.1", "1e3", " 5 ", "NaN"),
    *("true", "FALSE", "yes", "x", "compact", "delete", "compact,delete", "delete, delete"),
    *("CreateTime", "LogAppendTime", "producer", "uncompressed", "lz4", "gzip", "zstd"),
    *("record", "append", "offset", "timestamp", "header", "generational", "brute-force", "md5"),
    *("fsync", "page-cache", "file:///tmp/x", "s3://bucket/logs", "127.0.0.1:9404", "0.0.0.0:1"),
    *("PLAINTEXT", "PLAINTEXT://127.0.0.1:9092", "SSL", "PLAIN,SCRAM-SHA-256", "a,b", "a:b", "*"),
    *("User:ann;User:bob", "uniform", "range", "classic,consumer", "latest", "earliest", "none"),
)
# Other names to try: older names of Kafka's settings, settings without an effect, unknown names.
OTHER_NAMES: Final = (
    *("log.retention.hours", "log.retention.minutes", "log.segment.bytes", "log.roll.hours"),
    *(
        "message.timestamp.difference.max.ms",
        "message.format.version",
        "message.downconversion.enable",
    ),
    *("log.cleaner.enable", "log.retention.ms", "log.cleanup.policy", "nope", "Retention.ms", ""),
    *("retention.ms ", "zookeeper.connect", "process.roles", "controller.quorum.voters"),
)


def pages(home: Path) -> Iterator[Entry]:
    """Yield both pages."""
    os.chdir(home)
    yield from _topic_page()
    yield from _broker_page(home)


# ------------------------------------------------------------------------------------- Topics


def _settings(*options: str) -> dict[str, tuple[str, str]]:
    """Return value and source of each setting of the topic `t`."""
    rows = map(
        json.loads, run("config", "t", "--data", "topics", *options, "-o", "json").out.splitlines()
    )
    return {row["setting"]: (row["value"], row["source"]) for row in rows}


def _topic_page() -> Iterator[Entry]:
    run("create", "t", "--data", "topics")
    with tidelog.open("topics", writable=True) as directory:
        for name, (value, source) in _settings("--all").items():
            lines = [f"default {value!r} ({source})", *_by_outcome(_tries(directory, name))]
            yield Entry(f"surface/topic-settings/{name}", "\n".join(lines))
        for name in OTHER_NAMES:
            lines = [f"name {name!r}", *_by_outcome(_tries(directory, name))]
            plain = name.replace(" ", "_") or "empty"
            yield Entry(f"surface/topic-settings/~{plain}", "\n".join(lines))


def _tries(directory: tidelog.Directory, name: str) -> dict[str, str]:
    return {value: _try(directory, name, value) for value in VALUES}


def _by_outcome(tries: dict[str, str]) -> list[str]:
    """Return each outcome with its values; for the most frequent outcome, only their number."""
    values = defaultdict[str, list[str]](list)
    for value, outcome in tries.items():
        values[outcome].append(f"    {value!r}")
    most = max(values, key=lambda outcome: len(values[outcome]))
    others = [line for outcome in values if outcome != most for line in (outcome, *values[outcome])]
    return [*others, most, f"    all others ({len(values[most])})"]


def _without(text: str, name: str, value: str) -> str:
    """Return an error's text with VALUE in place of the value."""
    return text.replace(f"{name}={value}", f"{name}=VALUE")


def _try(directory: tidelog.Directory, name: str, value: str) -> str:
    """Set a topic's setting; return the outcome, and remove the setting again."""
    try:
        notes = directory.alter_config("t", {name: value})
    except tidelog.TidelogError as error:
        return _without(f"{type(error).__name__}: {error}", name, value)
    own = _settings()
    directory.alter_config("t", dict.fromkeys(own))
    told = [
        f"{setting} as given" if shown == value else f"{setting}={shown!r}"
        for setting, (shown, _source) in own.items()
    ]
    noted = [_without(f"note: {note}", name, value) for note in notes]
    return "; ".join([*told, *noted]) or "nothing set"


# ------------------------------------------------------------------------------------- Broker


def _broker_page(home: Path) -> Iterator[Entry]:
    told = _described(home)
    tries = defaultdict[str, dict[str, str]](dict)
    for value in VALUES:
        refused = _refused(dict.fromkeys(told, value))
        for name in told:
            tries[name][value] = _without(refused.get(name, "taken"), name, value)
    for name, facts in told.items():
        text = "\n".join([facts, *_by_outcome(tries[name])])
        yield Entry(f"surface/broker-settings/{name}", text)
    for name in OTHER_NAMES:
        text = _refused({name: "1"}).get(name, "taken")
        plain = name.replace(" ", "_") or "empty"
        yield Entry(f"surface/broker-settings/~{plain}", text)


def _described(home: Path) -> dict[str, str]:
    """Return the description of each setting of a running broker, by name."""
    with tidelog.broker(str(home / "data")) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        resource = ConfigResource(ConfigResource.Type.BROKER, "0")
        found = admin.describe_configs([resource])[resource].result(timeout=60)
        port = broker.bootstrap_servers.rpartition(":")[2]
    return {
        name: " ".join(
            [
                f"default {entry.value!r}".replace(port, "PORT"),
                f"({ConfigSource(entry.source).name})",
                f"synonyms {', '.join(entry.synonyms) or 'none'}",
                *(["read-only"] if entry.is_read_only else []),
                *(["sensitive"] if entry.is_sensitive else []),
            ]
        )
        for name, entry in sorted(found.items())
    }


def _refused(settings: dict[str, str]) -> dict[str, str]:
    """Return the error of each setting that a broker refuses at its start."""
    try:
        # `node.id` is always invalid, so that no broker starts even if `settings` are valid.
        tidelog.broker(settings=settings | {"node.id": "refused"}).close()
    except tidelog.ConfigErrors as errors:
        return {error.key: f"{error}" for error in errors.errors}
    except tidelog.ConfigError as error:
        if error.key == "node.id":
            return {}
        return dict.fromkeys(settings, f"{type(error).__name__}: {error}")
    raise AssertionError("a broker started with a refused setting")
