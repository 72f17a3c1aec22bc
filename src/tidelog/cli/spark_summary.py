"""Summaries of jobs: one row as a table of two columns for people, as an object for scripts."""

from collections.abc import Mapping, Sequence

from tidelog.cli import output, times
from tidelog.cli.choices import Format
from tidelog.cli.output import Cell, Column, Kind
from tidelog.cli.problems import Refused
from tidelog.cli.surroundings import Surroundings
from tidelog.spark.report import Plot, Report, Table, plot_by_hour, write_report


def print_summary(
    surroundings: Surroundings,
    columns: Sequence[Column],
    row: Sequence[Cell],
    kind: Format,
    *,
    zone: str | None = None,
) -> None:
    """Write one row: a line for each column in a table, else as all rows are written."""
    if kind is not Format.TABLE:
        output.print_rows(surroundings, columns, [row], kind, zone=zone)
        return
    cells = [[column.name, cell_text(column, cell, zone)] for column, cell in pairs(columns, row)]
    output.print_rows(surroundings, [output.text("what"), output.text("value")], cells, kind)


def pairs(columns: Sequence[Column], row: Sequence[Cell]) -> list[tuple[Column, Cell]]:
    """Columns with their cells."""
    return list(zip(columns, row, strict=True))


def cell_text(column: Column, cell: Cell, zone: str | None = None) -> str:
    """A cell for people."""
    if column.kind is Kind.TIME:
        return times.shown(cell if isinstance(cell, int) else None, zone)
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int | float):
        return f"{cell:,}"
    if isinstance(cell, list | tuple):
        return "; ".join(str(one) for one in cell) or "-"
    return str(cell)


def report_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    *,
    title: str,
    zone: str | None = None,
) -> Table:
    """Rows as a table of a report."""
    cells = [
        [cell_text(column, cell, zone) for column, cell in pairs(columns, row)] for row in rows
    ]
    return Table([column.name.replace("_", " ") for column in columns], cells, title)


def summary_table(
    columns: Sequence[Column], row: Sequence[Cell], *, zone: str | None = None
) -> Table:
    """One row as a table of two columns of a report."""
    cells = [
        [column.name.replace("_", " "), cell_text(column, cell, zone)]
        for column, cell in pairs(columns, row)
    ]
    return Table(["what", "value"], cells, "Summary")


def clock_plots(
    by_clock: Mapping[str, Mapping[int, int]], title: str, *, zone: str | None = None
) -> list[Plot]:
    """A plot of records by hour for each clock; each has an axis of its own.

    Args:
        by_clock: `record` and `append` -> hour since the epoch -> records.
        title: With `{}` for the clock. What was made years before it was appended would leave no
            hour to see on a common axis.
        zone: Of the times at the axis; UTC where None.
    """
    return [
        plot_by_hour(
            {"": {"records": dict(hours)}}, "records", title=title.format(clock), zone=zone
        )
        for clock, hours in sorted(by_clock.items(), reverse=True)
    ]


def save_report(surroundings: Surroundings, path: str, report: Report) -> None:
    """Write a report and say where it is; raises Refused where it can't be written."""
    try:
        write_report(path, report)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror or error}; all else is done") from error
    surroundings.say(f"report: {path}")
