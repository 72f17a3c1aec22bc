"""`tidelog topics`, `delete`, `config` and `describe` of a running cluster."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tidelog.cli import output
from tidelog.cli.brokers import open_remote
from tidelog.cli.choices import Format
from tidelog.cli.cluster_options import Access
from tidelog.cli.output import Cell
from tidelog.cli.problems import UsageProblem
from tidelog.cli.surroundings import Surroundings
from tidelog.config import ConfigNote, key_names, plain_names
from tidelog.errors import ConfigError
from tidelog.storage.files import encode_topic_id
from tidelog.types import IsolationLevel

if TYPE_CHECKING:
    from tidelog.cluster.remote_directory import RemoteDirectory
    from tidelog.cluster.topics import RemoteTopic


def topic_rows(surroundings: Surroundings, access: Access) -> list[list[Cell]]:
    """A row for each topic; segments and bytes are the brokers' own business."""
    with open_remote(surroundings, access) as cluster:
        topics = cluster.topics()
    return [
        [info.name, info.partitions, None, None, _id_of(info), _given(info)]
        for info in topics.values()
    ]


def _id_of(info: "RemoteTopic") -> str | None:
    return None if info.topic_id is None else encode_topic_id(info.topic_id)


def _given(info: "RemoteTopic") -> str:
    return ",".join(f"{key}={value}" for key, value in info.given.items()) or "defaults"


def delete(surroundings: Surroundings, access: Access, topic: str, *, yes: bool) -> None:
    """Delete a topic; without `yes` only say what would go.

    Raises:
        UsageProblem: `yes` is missing; nothing was changed.
    """
    with open_remote(surroundings, access) as cluster:
        if not yes:
            offsets = _offsets(cluster, topic)
            raise UsageProblem(
                f"{topic} and its {offsets} offsets of records would go; add --yes to do it"
            )
        cluster.delete_topic(topic)
    surroundings.say(f"deleted {topic}")


def _offsets(cluster: "RemoteDirectory", topic: str) -> int:
    marks = cluster.cluster.watermarks(cluster.partitions(topic))
    return sum(mark.end - mark.start for mark in marks.values())


def plain_changes(
    changes: Mapping[str, str | None],
) -> tuple[dict[str, str | None], list[ConfigNote]]:
    """Changes under the names that brokers know, and what to tell their author."""
    given = {key: value for key, value in changes.items() if value is not None}
    plain, notes = plain_names(given)
    cleared = [key for key, value in changes.items() if value is None]
    return {**{key: None for name in cleared for key in _keys_of(name)}, **plain}, notes


def _keys_of(name: str) -> tuple[str, ...]:
    try:
        return key_names(name) or (name,)
    except ConfigError:
        return (name,)  # which brokers may know all the same


def setting_rows(
    surroundings: Surroundings,
    access: Access,
    topic: str,
    changes: Mapping[str, str | None],
    *,
    show_all: bool,
) -> list[list[Cell]]:
    """Change a topic's settings where there are changes, then a row for each."""
    with open_remote(surroundings, access) as cluster:
        info = cluster.topic(topic)
        if changes:
            _refuse_unknown(info, changes)
            cluster.alter_config(topic, changes)
            info = cluster.topic(topic)
    return [
        [key, value, "topic" if key in info.given else "default"]
        for key, value in sorted(info.settings.items())
        if show_all or key in info.given
    ]


def _refuse_unknown(info: "RemoteTopic", changes: Mapping[str, str | None]) -> None:
    """Raise ConfigError for a setting to clear that is none: brokers say nothing to that."""
    for key, value in changes.items():
        if value is None and key not in info.settings:
            raise ConfigError(key, None, f"the brokers know no such setting of topic {info.name}")


def describe(
    surroundings: Surroundings, access: Access, topic: str, kind: Format, zone: str | None
) -> None:
    """Print what brokers tell of a topic: tables, or one JSON object."""
    with open_remote(surroundings, access) as cluster:
        info = cluster.topic(topic)
        rows = _partition_rows(cluster, topic)
    columns = [
        *map(output.number, ("partition", "start", "end", "last_stable")),
        output.time("largest"),
    ]
    if kind is Format.JSON:
        output.print_object(surroundings, _topic_object(info, rows, zone))
        return
    if kind is Format.TABLE:
        stamped = info.settings.get("message.timestamp.type", "-")
        surroundings.stdout.write(
            f"topic      {info.name}\nid         {_id_of(info) or '-'}\n"
            f"settings   {_given(info)}\ntimestamps {stamped}\n\n"
        )
    output.print_rows(surroundings, columns, rows, kind, zone=zone)


def _partition_rows(cluster: "RemoteDirectory", topic: str) -> list[list[Cell]]:
    names = cluster.partitions(topic)
    marks = cluster.cluster.watermarks(names)
    stable = cluster.end_offsets(names, isolation=IsolationLevel.READ_COMMITTED)
    largest = cluster.cluster.max_timestamps(names)
    rows: list[list[Cell]] = []
    for name in names:
        found = largest[name]
        time_ms = None if found is None else found.timestamp
        mark = marks[name]
        rows.append([name.partition, mark.start, mark.end, stable[name], time_ms])
    return rows


def _topic_object(info: "RemoteTopic", rows: list[list[Cell]], zone: str | None) -> dict[str, Cell]:
    """As `describe` of a directory, as far as brokers tell."""
    facts: list[Cell] = [
        {
            "partition": number,
            "log_start_offset": start,
            "log_end_offset": end,
            "last_stable_offset": stable,
            "record": output.time_fields("largest", largest, zone),
        }
        for number, start, end, stable, largest in rows
    ]
    return {
        "topic": info.name,
        "topic_id": _id_of(info),
        "partitions": info.partitions,
        "settings": dict(info.given),
        "timestamp_type": info.settings.get("message.timestamp.type"),
        "partition_facts": facts,
    }
