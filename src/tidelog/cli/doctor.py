"""`tidelog doctor`: checks a data directory for damage and suggests repairs."""

import posixpath
import shlex
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import click

from tidelog.cli import completion, output
from tidelog.cli.options import Format, data_option, examples, format_option
from tidelog.cli.output import Cell
from tidelog.cli.surroundings import (
    Surroundings,
    UsageProblem,
    byte_progress,
    describe,
    interrupted_as,
)
from tidelog.errors import TidelogError
from tidelog.lazy_dataclass import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tidelog.storage.checks import DirectoryCheck, Finding, Selection
    from tidelog.storage.log.record_rules import BodyCheck

# If the checked logs have at least this number of bytes, the compiled check saves more time than
# the import of numba takes.
KERNEL_BYTES: Final = 8 << 20
COLUMNS: Final = output.columns(
    "severity",
    "state",
    "file",
    output.minor(output.number("position", "offset")),
    output.prose("damage", "remedy"),
)
_STATES: Final = {True: "repaired", False: "open"}

# Maximum number of topics that the note on unchecked tiers names.
_TOPICS_NAMED: Final = 3


class Verdict(IntEnum):
    """Exit code of `doctor`."""

    SOUND = 0
    FINDINGS = 1
    BLIND = 2


@dataclass(frozen=True, slots=True)
class _Target:
    """A directory, and the part of it to check."""

    path: str
    selection: "Selection"


@click.command(
    "doctor",
    epilog=examples(
        "tidelog doctor data",
        "tidelog doctor flights:0 --data data -o json",
        "tidelog doctor /var/lib/kafka/data",
        "tidelog doctor data --repair",
    ),
)
@click.argument(
    "target", required=False, metavar="[DIR|TOPIC[:P]]", shell_complete=completion.targets
)
@data_option
@click.option(
    "--repair",
    is_flag=True,
    help="Rebuild damaged derived files; takes the lock. Default: change nothing.",
)
@format_option
@click.pass_obj
def doctor(
    surroundings: Surroundings, target: str | None, data: str | None, repair: bool, kind: Format
) -> Verdict:
    """Check a directory for damage and suggest repairs.

    Checks every file of a partition against the others; objects in tiers are not checked. Changes
    nothing, unless --repair is given. --repair rebuilds indexes, snapshots, zone maps and
    checkpoints from a sound log; it never changes records and append times.

    Exit code: 0 sound (apart from notes), 1 findings, 2 not everything could be checked.
    """
    part = _find_target(surroundings, target, data)
    effect = "records are unchanged; repeat --repair to finish" if repair else "nothing was changed"
    try:
        with interrupted_as(effect):
            return _examine(surroundings, part, kind, mends=repair)
    except (TidelogError, OSError) as error:
        surroundings.fail(*describe(error)[1:])
        return Verdict.BLIND


def _find_target(surroundings: Surroundings, target: str | None, data: str | None) -> _Target:
    """Return what to check: directory `target`, or topic `target` in `data`.

    Without `target`, the result is the whole directory `data`.
    """
    from tidelog.storage.checks import Selection

    fs = surroundings.env.files
    if target is None:
        if not data:
            raise UsageProblem("nothing to check; give a directory, or a topic and --data")
        return _Target(data.rstrip("/") or "/", Selection())
    exists = fs.exists(target)
    if exists and fs.stat(target).is_dir:
        return _directory(surroundings, target.rstrip("/") or "/")
    if not data or "/" in target:
        if exists:
            raise UsageProblem(f"{target} is not a directory")
        raise UsageProblem(f"{target}: no such directory; a topic needs --data DIR")
    topic, separator, number = target.partition(":")
    if separator and not (number.isascii() and number.isdigit()):
        raise UsageProblem(f"{target}: write TOPIC:PARTITION with a number, e.g. flights:0")
    return _Target(data.rstrip("/") or "/", Selection(topic, int(number) if separator else None))


def _directory(surroundings: Surroundings, path: str) -> _Target:
    """Return the target for the path of a directory.

    For a partition's directory, the target is the parent directory, but only that partition is
    checked.
    """
    from tidelog.storage import files
    from tidelog.storage.checks import Selection

    name = files.parse_partition_dir(posixpath.basename(path))
    entries = surroundings.env.files.list_dir(path)
    if name is not None and not any(e.is_dir and _is_partition(e.name) for e in entries):
        return _Target(posixpath.dirname(path) or ".", Selection(name.topic, name.partition))
    return _Target(path, Selection())


def _is_partition(name: str) -> bool:
    from tidelog.storage import files

    return files.parse_partition_dir(name) is not None


def _examine(surroundings: Surroundings, checked: _Target, kind: Format, *, mends: bool) -> Verdict:
    from tidelog.storage.checks import repair

    lock = repair.lock(surroundings.env, checked.path) if mends else None
    try:
        check, findings = _check(surroundings, checked)
        open_findings = findings
        if mends and any(finding.repairable for finding in findings):
            for line in repair.repair(surroundings.env, check, findings):
                surroundings.note(f"{line}")
            check, open_findings = _check(surroundings, checked)
    finally:
        if lock is not None:
            lock.close()
    from tidelog.storage.checks.directory_check import check_verdict, repair_command

    verdict = check_verdict(check, findings, open_findings, is_repair=mends)
    output.print_verdict(surroundings, verdict, kind)
    if findings or open_findings or kind is not Format.TABLE:
        rows = _rows(findings, open_findings, repair_command(check))
        output.print_rows(surroundings, COLUMNS, rows, kind)
    if kind is Format.JSON and not findings and not open_findings and not check.unseen:
        output.print_object(
            surroundings, {"path": check.path, "sound": True, "partitions": len(check.partitions)}
        )
    for failure in check.unseen:
        surroundings.fail(*describe(failure)[1:])
    if tiered := check.tiered_topics():
        surroundings.note(f"the objects in the tiers of {_named(tiered)} were not checked")
        topic = f"{tiered[0]} " if len(tiered) == 1 else ""
        data = shlex.quote(check.path)
        surroundings.hint(f"`tidelog tier {topic}--data {data} --verify` checks them")
    if check.unseen:
        return Verdict.BLIND
    return Verdict.FINDINGS if any(finding.counts for finding in open_findings) else Verdict.SOUND


def _named(topics: "Sequence[str]") -> str:
    shown = ", ".join(topics[:_TOPICS_NAMED])
    return f"{shown} and {len(topics) - _TOPICS_NAMED} more" if topics[_TOPICS_NAMED:] else shown


def _check(surroundings: Surroundings, checked: _Target) -> "tuple[DirectoryCheck, list[Finding]]":
    """Check the target with a progress bar; return the check and all its findings."""
    from tidelog.storage.checks import CheckOptions, DirectoryCheck

    env = surroundings.env
    check = DirectoryCheck(env.files, checked.path, checked.selection, clock=env.clock)
    findings = check.load()
    total = check.log_bytes()
    with byte_progress(surroundings, "checking", total) as show:
        done = 0

        def progress(count: int) -> None:
            nonlocal done
            done += count
            show(done)

        options = CheckOptions(
            body_check=_body_check(total), progress=progress, metadata=_metadata_reader
        )
        check.options = options
        findings += check.findings()
    return check, findings


def _metadata_reader() -> "Callable[[bytes], object]":
    """Return the function that a broker uses to decode a record of its metadata log."""
    from tidelog.server.admin.metadata_records import MetadataImage, decode

    image = MetadataImage()
    return lambda value: image.replay(decode(value))


def _body_check(total_bytes: int) -> "BodyCheck":
    """Return the function that checks batch bodies: compiled for large directories, else plain.

    The compiled function needs numba.
    """
    from tidelog.storage.log.record_rules import check_body

    if total_bytes < KERNEL_BYTES:
        return check_body
    try:
        from tidelog.record.kernels.records import check_body as kernel_check
    except ImportError:
        return check_body
    return kernel_check


def _rows(
    findings: "Sequence[Finding]", open_findings: "Sequence[Finding]", command: str
) -> list[list[Cell]]:
    """Return rows for `findings`, then for the findings that only `open_findings` has.

    After a repair, `open_findings` are the findings of the check that follows the repair. Without a
    repair, they are the findings of the only check. `command` is the whole command that repairs.
    """
    open_paths = {finding.path for finding in open_findings}
    first_findings = set(findings)
    rows = [_row(each, command, repaired=each.path not in open_paths) for each in findings]
    return rows + [
        _row(each, command, repaired=False) for each in open_findings if each not in first_findings
    ]


def _row(finding: "Finding", command: str, *, repaired: bool) -> list[Cell]:
    from tidelog.storage.checks.findings import REPAIR_COMMAND

    return [
        finding.severity.value,
        _STATES[repaired],
        finding.path,
        finding.position,
        finding.offset,
        finding.damage,
        None if repaired else finding.remedy.replace(REPAIR_COMMAND, command),
    ]
