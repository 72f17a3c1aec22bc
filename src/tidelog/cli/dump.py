"""`tidelog dump`: what is in the files of a log, and what of it is damaged."""

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tidelog.cli import dump_indexes, output
from tidelog.cli.choices import Encoding, Format
from tidelog.cli.dump_file import Dumped, DumpFile
from tidelog.cli.dump_log import dump_log
from tidelog.cli.dump_texts import TEXT_FILES, dump_text
from tidelog.cli.dump_zones import dump_zones
from tidelog.cli.problems import ExitCode, UsageProblem
from tidelog.cli.surroundings import Surroundings
from tidelog.env import FileSystem
from tidelog.storage import files

_BY_SUFFIX: Final[Mapping[str, Callable[[DumpFile], Dumped]]] = {
    files.OFFSET_INDEX_SUFFIX: dump_indexes.dump_offset_index,
    files.TIME_INDEX_SUFFIX: dump_indexes.dump_time_index,
    files.TXN_INDEX_SUFFIX: dump_indexes.dump_txn_index,
    files.SNAPSHOT_SUFFIX: dump_indexes.dump_snapshot,
    files.APPEND_TIME_SUFFIX: dump_indexes.dump_append_time,
    files.ZONES_SUFFIX: dump_zones,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What is shown of a file.

    Attributes:
        deep: Records, not only their batches.
        key: What keys are shown as.
        value: What values are shown as.
        zone: Of times printed.
    """

    deep: bool = False
    key: Encoding = Encoding.AUTO
    value: Encoding = Encoding.AUTO
    zone: str | None = None


def dump(surroundings: Surroundings, paths: Sequence[str], shown: Shown, kind: Format) -> ExitCode:
    """Print what is in files, or in all files of directories; findings go to stderr.

    Args:
        surroundings: Streams and files.
        paths: Files, and directories of partitions.
        shown: What of them.
        kind: How rows are written.

    Raises:
        UsageProblem: A path is missing, or a file of a kind that is not known.
    """
    file_system = surroundings.env.files
    found = [path for given in paths for path in _files_of(file_system, given)]
    count = 0
    for path in found:
        dumped_file = DumpFile(path, file_system, _base_offset(path))
        dumped = _dump(dumped_file, shown)
        if kind is Format.JSON:
            dumped = _with_path(path, dumped)
        elif len(found) > 1:
            surroundings.stdout.write(f"\n{path}\n")
        output.print_rows(surroundings, dumped.columns, dumped.rows, kind, zone=shown.zone)
        for line in dumped_file.notes:
            surroundings.say(f"note: {line}")
        for line in dumped_file.findings:
            surroundings.say(f"found: {line}")
        count += len(dumped_file.findings)
    if count:
        surroundings.say(f"{count} finding{'s'[: count > 1]} in {len(found)} files")
    return ExitCode.FINDINGS if count else ExitCode.OK


def _with_path(path: str, dumped: Dumped) -> Dumped:
    """Scripts get the file in each row, since kinds of rows follow each other."""
    return Dumped([output.text("file"), *dumped.columns], ([path, *row] for row in dumped.rows))


def _files_of(file_system: FileSystem, path: str) -> Iterator[str]:
    if not file_system.exists(path):
        raise UsageProblem(f"{path}: no such file or directory")
    if not file_system.stat(path).is_dir:
        if _kind(path) is None:
            known = ", ".join((files.LOG_SUFFIX, *_BY_SUFFIX, *TEXT_FILES))
            raise UsageProblem(f"{path}: not a file of a log by its name; known are {known}")
        yield path
        return
    names = [entry.name for entry in file_system.list_dir(path) if not entry.is_dir]
    known_names = [name for name in names if _kind(name) is not None]
    if not known_names:
        raise UsageProblem(f"{path}: no file of a log in it; give a partition's directory")
    yield from (posixpath.join(path, name) for name in known_names)


def _kind(path: str) -> str | None:
    """The suffix or the name by which a file is known; `.deleted` and the like don't count."""
    name = posixpath.basename(path)
    if name in TEXT_FILES:
        return name
    for extra in (files.DELETED_SUFFIX, files.CLEANED_SUFFIX, files.SWAP_SUFFIX):
        name = name.removesuffix(extra)
    suffix = posixpath.splitext(name)[1]
    return suffix if suffix == files.LOG_SUFFIX or suffix in _BY_SUFFIX else None


def _base_offset(path: str) -> int:
    parsed = files.parse_file_name(posixpath.basename(path))
    return 0 if parsed is None else parsed[0]


def _dump(dumped: DumpFile, shown: Shown) -> Dumped:
    kind = _kind(dumped.path)
    assert kind is not None
    if kind == files.LOG_SUFFIX:
        return dump_log(dumped, deep=shown.deep, key=shown.key, value=shown.value)
    if kind in TEXT_FILES:
        return dump_text(dumped, kind)
    return _BY_SUFFIX[kind](dumped)
