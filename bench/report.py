"""Formats a run's results: as a table for people, and as JSON for docs/benchmarks.md and README."""

import json
import os
import platform
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from rich.console import Console
from rich.table import Table

from bench.harness import Result, Side


class SideJson(TypedDict):
    """Figures of tidelog or of its rival in a case; `CaseJson` has the medians."""

    min: float
    max: float
    wall_s: float
    cpu_s: float
    peak_bytes: int | None


class CaseJson(TypedDict):
    """A case; docs/testing.md explains the fields."""

    case: str
    unit: str
    ours: float
    rival: float | None
    rival_name: str | None
    ratio: float | None
    goal: str | None
    met: bool | None
    note: str | None
    ours_detail: SideJson
    rival_detail: SideJson | None


class RunJson(TypedDict):
    """Contents of a run's JSON file."""

    name: str
    date: str
    quick: bool
    machine: dict[str, str | int | None]
    cases: list[CaseJson]


_STEPS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
_HAS_PREFIX = re.compile(r"\b([kKMG]i?B|[mun]s)\b")


def human(value: float | None, unit: str) -> str:
    """Format a number with three digits and a prefix for the unit, e.g. `46.1 M`; a dash for None.

    If the unit already has a prefix (MB, us), the number gets none: `1,220`.
    """
    if value is None:
        return "-"
    if _HAS_PREFIX.search(unit) and abs(value) >= 1e3:
        return f"{float(f'{value:.3g}'):,.0f}"
    for step, letter in _STEPS:
        if abs(value) >= step:
            return f"{value / step:.3g} {letter}"
    return f"{value:.3g}"


def machine() -> dict[str, str | int | None]:
    """Return a description of this machine, without its host name."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_version()} ({platform.python_build()[1]})",
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def as_json(name: str, results: Sequence[Result], *, quick: bool) -> str:
    """Return a run as JSON; docs/testing.md lists the fields."""
    run: RunJson = {
        "name": name,
        "date": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "quick": quick,
        "machine": machine(),
        "cases": [_case(result) for result in results],
    }
    return json.dumps(run, indent=2) + "\n"


def _case(result: Result) -> CaseJson:
    case = result.case
    return {
        "case": case.case,
        "unit": case.unit,
        "ours": result.ours.value,
        "rival": result.rival.value if result.rival else None,
        "rival_name": case.rival_name or None,
        "ratio": result.ratio,
        "goal": case.goal or None,
        "met": result.met,
        "note": case.note or None,
        "ours_detail": _side(result.ours),
        "rival_detail": _side(result.rival) if result.rival else None,
    }


def _side(side: Side) -> SideJson:
    return {
        "min": side.value_min,
        "max": side.value_max,
        "wall_s": side.wall_s,
        "cpu_s": side.cpu_s,
        "peak_bytes": side.peak_bytes,
    }


def markdown(runs: Sequence[RunJson]) -> str:
    """Return runs, parsed from their JSON, as one table in Markdown.

    A case without a rival has no ratio.
    """
    rows = [_markdown_cells(run, case) for run in runs for case in run["cases"]]
    lines = ["| benchmark | case | tidelog | against | ratio | goal |", "|---|---|---|---|---|---|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    days = sorted({f"{run['name']} {run['date'][:10]}" for run in runs})
    quick = [run["name"] for run in runs if run["quick"]]
    lines += ["", f"Days of the runs: {', '.join(days)}."]
    if quick:
        lines.append(f"Quick runs: {', '.join(quick)}.")
    return "\n".join(lines) + "\n"


def _markdown_cells(run: RunJson, case: CaseJson) -> list[str]:
    unit, met = case["unit"], {None: "", True: " met", False: " missed"}[case["met"]]
    name = case["rival_name"]
    rival = f"{name}: {human(case['rival'], unit)} {unit}" if name else ""
    ratio = "" if case["ratio"] is None else f"{case['ratio']:.2f}x"
    goal = f"{case['goal'] or ''}{met}"
    return [run["name"], case["case"], f"{human(case['ours'], unit)} {unit}", rival, ratio, goal]


def print_table(console: Console, name: str, results: Sequence[Result]) -> None:
    """Print a run as a table, with the notes below it."""
    table = Table(title=f"bench {name}", title_justify="left")
    table.add_column("case", overflow="fold")
    table.add_column("unit")
    for heading in ("ours", "rival", "ratio"):
        table.add_column(heading, justify="right")
    table.add_column("rival is", overflow="fold")
    table.add_column("goal")
    table.add_column("CPU/wall", justify="right")
    table.add_column("peak memory", justify="right")
    for result in results:
        table.add_row(*_row(result))
    console.print(table)
    for note in dict.fromkeys(result.case.note for result in results if result.case.note):
        console.print(f"- {note}")


def _row(result: Result) -> list[str]:
    case, ours, rival = result.case, result.ours, result.rival
    verdict = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[result.met]
    return [
        case.case,
        case.unit,
        human(ours.value, case.unit),
        human(rival.value if rival else None, case.unit),
        "-" if result.ratio is None else f"{result.ratio:.2f}x",
        case.rival_name,
        f"{case.goal} {verdict}".strip(),
        _both(_cpu_share(ours), _cpu_share(rival)),
        _both(_megabytes(ours), _megabytes(rival)),
    ]


def _cpu_share(side: Side | None) -> str | None:
    return f"{side.cpu_s / side.wall_s:.0%}" if side and side.wall_s else None


def _megabytes(side: Side | None) -> str | None:
    if side is None or side.peak_bytes is None:
        return None
    return f"{side.peak_bytes / 2**20:.1f} MiB"


def _both(ours: str | None, rival: str | None) -> str:
    return " | ".join(part for part in (ours or "-", rival) if part is not None)
