"""`tidelog topics`, `create`, `delete` and `config`."""

from collections.abc import Iterable, Mapping, Sequence

from tidelog.cli import output, remote
from tidelog.cli.brokers import open_remote
from tidelog.cli.choices import Format
from tidelog.cli.cluster_options import Place
from tidelog.cli.opening import open_directory
from tidelog.cli.output import Cell
from tidelog.cli.problems import UsageProblem
from tidelog.cli.surroundings import Surroundings
from tidelog.config import ConfigNote, plain_names
from tidelog.directory import Directory
from tidelog.storage import files
from tidelog.storage.topic_info import TopicInfo
from tidelog.storage.topics import NewTopic, check_new
from tidelog.types import TopicPartition


def list_topics(surroundings: Surroundings, place: Place, kind: Format) -> None:
    """Print the topics; nothing is opened that need not be."""
    columns = [
        output.text("topic"),
        output.number("partitions"),
        output.number("segments"),
        output.number("bytes"),
        output.text("topic_id"),
        output.text("settings"),
    ]
    if place.access is not None:
        rows = remote.topic_rows(surroundings, place.access)
    else:
        with open_directory(surroundings, place.data) as directory:
            rows = [_topic_row(directory, info) for info in directory.topics().values()]
    output.print_rows(surroundings, columns, rows, kind)
    if not rows:
        where = place.data if place.access is None else place.access.bootstrap
        surroundings.say(f"{where} has no topics; `tidelog create TOPIC` makes one")


def _topic_row(directory: Directory, info: TopicInfo) -> list[Cell]:
    sizes = [size for number in info.present for size in _log_sizes(directory, info, number)]
    return [
        info.name,
        info.partitions,
        len(sizes),
        sum(sizes),
        topic_id_of(info),
        settings_of(info),
    ]


def _log_sizes(directory: Directory, info: TopicInfo, number: int) -> list[int]:
    """Sizes of a partition's log files, by their names alone."""
    place = files.partition_dir_name(TopicPartition(info.name, number))
    path = f"{directory.path}/{place}"
    file_system = directory.log_dir.env.files
    parsed = ((e.name, files.parse_file_name(e.name)) for e in file_system.list_dir(path))
    return [
        file_system.stat(f"{path}/{name}").size
        for name, found in parsed
        if found is not None and found[1] == files.LOG_SUFFIX
    ]


def topic_id_of(info: TopicInfo) -> str | None:
    """The topic's id as Kafka prints it, None where it has none."""
    return None if info.topic_id is None else files.encode_topic_id(info.topic_id)


def settings_of(info: TopicInfo) -> str:
    """The settings that were given, `key=value,key=value`."""
    if info.foreign:
        return "unknown: another program made it"
    return ",".join(f"{key}={value}" for key, value in info.given.items()) or "defaults"


def create(
    surroundings: Surroundings,
    place: Place,
    topic: str,
    *,
    partitions: int,
    settings: Sequence[str],
) -> None:
    """Create a topic, and the directory where it is missing."""
    config = parse_settings(settings)
    if place.access is not None:
        config, notes = plain_names(config)
        with open_remote(surroundings, place.access) as cluster:
            cluster.create_topic(topic, partitions=partitions, config=config)
    else:
        check_new(NewTopic(topic, partitions, config))  # before a missing directory is made
        with open_directory(surroundings, place.data, writable=True, create=True) as directory:
            notes = directory.create_topic(topic, partitions=partitions, config=config)
    _say_notes(surroundings, notes)
    surroundings.say(f"created {topic} with {partitions} partition{'s'[: partitions > 1]}")


def parse_settings(texts: Iterable[str]) -> dict[str, str]:
    """The settings in texts such as `retention.ms=-1`; raises UsageProblem."""
    settings = {}
    for given in texts:
        key, separator, value = given.partition("=")
        if not separator or not key:
            raise UsageProblem(f"{given!r}: write KEY=VALUE, e.g. retention.ms=-1")
        settings[key.strip()] = value.strip()
    return settings


def _say_notes(surroundings: Surroundings, notes: Iterable[ConfigNote]) -> None:
    for note in notes:
        surroundings.say(f"note: {note}")


def delete(surroundings: Surroundings, place: Place, topic: str, *, yes: bool) -> None:
    """Delete a topic; without `yes` only say what would go.

    Raises:
        UsageProblem: `yes` is missing; nothing was changed.
    """
    if place.access is not None:
        remote.delete(surroundings, place.access, topic, yes=yes)
        return
    if not yes:
        with open_directory(surroundings, place.data) as directory:
            size = _topic_row(directory, directory.topic(topic))[3]
        raise UsageProblem(f"{topic} and its {size} bytes of records would go; add --yes to do it")
    with open_directory(surroundings, place.data, writable=True) as directory:
        directory.delete_topic(topic)
    surroundings.say(f"deleted {topic}")


def config(
    surroundings: Surroundings,
    place: Place,
    topic: str,
    *,
    changes: Mapping[str, str | None],
    show_all: bool,
    kind: Format,
) -> None:
    """Change a topic's settings where `changes` has any (None for the default), then print them."""
    if place.access is not None:
        plain, notes = remote.plain_changes(changes)
        rows = remote.setting_rows(surroundings, place.access, topic, plain, show_all=show_all)
        _say_notes(surroundings, notes)
    else:
        with open_directory(surroundings, place.data, writable=bool(changes)) as directory:
            directory.topic(topic)
            if changes:
                _say_notes(surroundings, directory.alter_config(topic, changes))
            info = directory.topic(topic)
        rows = _setting_rows(info, show_all=show_all)
    columns = [output.text("setting"), output.text("value"), output.text("source")]
    output.print_rows(surroundings, columns, rows, kind)


def _setting_rows(info: TopicInfo, *, show_all: bool) -> list[list[Cell]]:
    return [
        [key, value, "topic" if key in info.given else "default"]
        for key, value in info.config.texts().items()
        if show_all or key in info.given
    ]


def changes_of(given: Sequence[str], cleared: Sequence[str]) -> dict[str, str | None]:
    """The changes that `--set` and `--unset` ask for; raises UsageProblem for both of one key."""
    changes: dict[str, str | None] = dict(parse_settings(given))
    for key in cleared:
        if key in changes:
            raise UsageProblem(f"{key} is both set and unset")
        changes[key] = None
    return changes
