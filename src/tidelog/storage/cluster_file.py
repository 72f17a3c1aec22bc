"""What a broker's directory keeps of a cluster: changed settings of brokers, and of groups.

They lie in a small file of our own at the top, `tidelog-cluster.json`, replaced atomically and
durable before a change is answered. What the broker was started with stands beside that, for who
has the directory when the broker has stopped: a tier that is moved then deletes what the broker
would, and no more. Quotas have a log (docs/decisions/0019).

Text of the file, format version 1: `{"version": 1, "quotas": [], "settings": {BROKER: {NAME: TEXT,
...}, ...}, "groups": {GROUP: {NAME: TEXT, ...}, ...}, "topic_defaults": {NAME: TEXT, ...}}`; a
broker is its number or nothing for all brokers. `quotas` is always there and empty;
`topic_defaults` may be missing.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.storage import files
from tidelog.types import Buffer

CLUSTER_FILE: Final = "tidelog-cluster.json"
CLUSTER_VERSION: Final = 1
# Whose settings are those of all brokers that have none of their own.
ALL_BROKERS: Final = ""

# Parts of an entity by type, sorted: ("client-id", "app"), ("user", None).
Entity: TypeAlias = tuple[tuple[str, str | None], ...]
Quotas: TypeAlias = Mapping[Entity, Mapping[str, float]]
Settings: TypeAlias = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class ClusterState:
    """All of it.

    Attributes:
        quotas: Values by Kafka's names, of each entity that has some. The file has none of them.
        settings: Texts by Kafka's names, by the broker's number or `ALL_BROKERS`.
        groups: Texts by Kafka's names, by the group.
        topic_defaults: What topics without settings of their own had at the broker that was here
            last, under a broker's names, changes in its course included; None where none noted it.
    """

    quotas: Quotas = field(default_factory=dict)
    settings: Settings = field(default_factory=dict)
    groups: Settings = field(default_factory=dict)
    topic_defaults: Mapping[str, str] | None = None


def settings_of(state: ClusterState, broker: int) -> Mapping[str, str]:
    """What was changed of a broker's settings; its own win over those of all."""
    found = state.settings
    return {**found.get(ALL_BROKERS, {}), **found.get(str(broker), {})}


def kept_defaults(state: ClusterState) -> Mapping[str, str]:
    """What topics' defaults were at the directory's broker, for who is not that broker.

    Where none noted them, what it keeps of changes tells. It takes those for its own number alone;
    where there are several numbers, it was renumbered, and nothing is told.
    """
    if state.topic_defaults is not None:
        return state.topic_defaults
    from tidelog.config.dynamic import TOPIC_DEFAULTS  # few directories keep any

    numbers = state.settings.keys() - {ALL_BROKERS}
    if len(numbers) > 1:
        return {}
    settings = settings_of(state, int(next(iter(numbers), 0)))
    return {name: text for name, text in settings.items() if name in TOPIC_DEFAULTS}


def with_defaults(state: ClusterState, defaults: Mapping[str, str]) -> ClusterState:
    """A state that notes a broker's defaults for topics.

    None are noted where nothing else says any: a directory whose broker has nothing to say needs no
    file.
    """
    noted = dict(defaults) if defaults or state.settings else None
    return replace(state, topic_defaults=noted)


def encode_cluster(state: ClusterState) -> bytes:
    """The file's text, sorted."""
    content = {
        "version": CLUSTER_VERSION,
        "quotas": [],
        "settings": _sorted(state.settings),
        "groups": _sorted(state.groups),
    }
    if state.topic_defaults is not None:
        content["topic_defaults"] = dict(sorted(state.topic_defaults.items()))
    text = json.dumps(content, indent=1, allow_nan=False)
    return f"{text}\n".encode("ascii")


def _sorted(settings: Settings) -> Settings:
    return {who: dict(sorted(texts.items())) for who, texts in sorted(settings.items())}


def decode_cluster(data: Buffer) -> ClusterState:
    """The state in a file's text.

    Raises:
        CorruptFile: It is not what `encode_cluster` writes.
        UnsupportedVersion: A later release wrote it.
    """
    try:
        found: object = json.loads(bytes(data))
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"not JSON: {error}") from None
    if not isinstance(found, dict) or type(found.get("version")) is not int:
        raise CorruptFile("an object with a version expected")
    version = found["version"]
    settings, groups = found.get("settings", {}), found.get("groups", {})
    if version > CLUSTER_VERSION:
        text = f"{CLUSTER_FILE} of version {version}, {CLUSTER_VERSION} is known"
        raise UnsupportedVersion(text)
    if version < 1 or found.get("quotas") != []:
        raise CorruptFile("a version from 1 on and an empty list `quotas` expected")
    if not isinstance(settings, dict) or not isinstance(groups, dict):
        raise CorruptFile("`settings` and `groups` are objects")
    return ClusterState(
        settings={_broker(who): _texts(who, given) for who, given in settings.items()},
        groups={_group(who): _texts(who, given) for who, given in groups.items()},
        topic_defaults=_defaults(found.get("topic_defaults")),
    )


def _broker(who: str) -> str:
    if who == ALL_BROKERS or (who.isascii() and who.isdigit()):
        return who
    raise CorruptFile(f"settings of {who!r}, those of a broker's number expected")


def _group(who: str) -> str:
    if who:
        return who
    raise CorruptFile("settings of a group without a name")


def _texts(who: str, given: object) -> Mapping[str, str]:
    if not isinstance(given, dict) or not given:
        raise CorruptFile(f"settings of {who!r} are {given!r}, one or more expected")
    for name, text in given.items():
        if not isinstance(text, str):
            raise CorruptFile(f"{name} is {text!r}, a text expected")
    return given


def _defaults(given: object) -> Mapping[str, str] | None:
    return {} if given == {} else None if given is None else _texts("topic_defaults", given)


def read_cluster(fs: FileSystem, directory: str) -> ClusterState:
    """What a directory's file says; nothing where there is none.

    Raises:
        CorruptFile, UnsupportedVersion: As `decode_cluster`, with the path.
        OSError: A call failed.
    """
    path = f"{directory}/{CLUSTER_FILE}"
    try:
        return decode_cluster(files.read_file(fs, path))
    except FileNotFoundError:
        return ClusterState()
    except CorruptFile as error:
        raise error.located(path) from error


def read_kept_defaults(
    fs: FileSystem, directory: str, report: Callable[[str], None]
) -> Mapping[str, str]:
    """`kept_defaults` of a directory; nothing, and a report, where the file can't be read.

    Nothing is deleted by age then but by a topic's own setting.

    Raises:
        OSError: A call failed.
    """
    try:
        return kept_defaults(read_cluster(fs, directory))
    except (CorruptFile, UnsupportedVersion) as error:
        report(f"{error}; what its broker keeps is not known")
        return {}


def write_cluster(fs: FileSystem, directory: str, state: ClusterState) -> None:
    """Replace a directory's file, durably; raises OSError, and then the old or the new is there."""
    files.write_atomically(fs, f"{directory}/{CLUSTER_FILE}", encode_cluster(state))
