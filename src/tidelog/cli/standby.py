"""`tidelog standby`: what is asked of the process that follows a leader, and how it is shown."""

from collections.abc import Mapping
from typing import Final

from tidelog.cli import output
from tidelog.cli.choices import Format
from tidelog.cli.output import Cell
from tidelog.cli.problems import NO_DATA, ExitCode, UsageProblem
from tidelog.cli.surroundings import Surroundings
from tidelog.control.client import ControlClient, find_holder
from tidelog.errors import CorruptMessage

COLUMNS: Final = (
    output.text("topic"),
    output.number("partition"),
    output.number("start"),
    output.number("end"),
    output.number("high_watermark"),
    output.number("lag"),
    output.text("problem"),
)


def status(surroundings: Surroundings, data: str | None, kind: Format) -> ExitCode:
    """Show where each partition is; 2 where one stands still.

    Raises:
        UsageProblem: No directory was given, or nobody follows into it.
        ControlFailure: No answer came.
    """
    with _follower(data) as holder:
        told = holder.status()
        return _show(surroundings, told, kind)


def flush(surroundings: Surroundings, data: str | None) -> ExitCode:
    """Make durable what was copied; raises as `status`, and StorageFailure."""
    with _follower(data) as holder:
        holder.flush()
    surroundings.say(f"what was copied to {data} is durable")
    return ExitCode.OK


def promote(
    surroundings: Surroundings, data: str | None, kind: Format, *, needs_all: bool
) -> ExitCode:
    """End the following; returns when the lock has gone.

    Raises:
        UsageProblem: As `status`.
        InvalidRequest: All was asked for, and something is missing; it follows on.
        ControlFailure: No answer came, or it does not let go.
    """
    with _follower(data) as holder:
        told = holder.ask("promote", {"needs_all": needs_all})
        holder.await_release()
    code = _show(surroundings, told, kind)
    surroundings.say(f"{data} follows {told['follows']} no more and can be opened for appends")
    return code


def _follower(data: str | None) -> ControlClient:
    if not data:
        raise UsageProblem(NO_DATA)
    holder = find_holder(data)
    if holder is None:
        raise UsageProblem(f"{data}: nobody follows into it; `tidelog follow` does")
    try:
        if "follows" not in holder.status():
            raise UsageProblem(f"{data}: the process that has it open follows no leader")
    except BaseException:
        holder.close()
        raise
    return holder


def _show(surroundings: Surroundings, told: Mapping[str, object], kind: Format) -> ExitCode:
    rows = _rows(told)
    output.print_rows(surroundings, COLUMNS, rows, kind)
    follows, pid = told["follows"], told["pid"]
    surroundings.say(f"process {pid} follows {follows}, offsets of {told['groups']} groups")
    return ExitCode.FINDINGS if any(row[-1] is not None for row in rows) else ExitCode.OK


def _rows(told: Mapping[str, object]) -> list[list[Cell]]:
    partitions = told.get("partitions")
    if not isinstance(partitions, list):
        raise CorruptMessage(f"no partitions in what the follower told: {str(told)[:200]}")
    return [[one.get(column.name) for column in COLUMNS] for one in partitions]
