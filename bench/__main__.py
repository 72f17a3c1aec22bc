"""Run benchmarks: `./run bench [NAME ...] [--quick] [--only SECTION] [--out FILE.json]`.

Without a name, all benchmarks are run.
"""

import argparse
import importlib
import json
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, cast

from rich.console import Console

from bench import report
from bench.harness import Case, Harness, Result

HERE = Path(__file__).parent
OUT_DIR = HERE.parent / "bench-output"
_CASES = re.compile(r"^def cases\(", re.MULTILINE)


def names() -> list[str]:
    """Return the names of the modules in this folder that define `cases`."""
    found = sorted(HERE.glob("*.py"))
    return [path.stem for path in found if _CASES.search(path.read_text())]


class Cases(Protocol):
    """Function `cases` of a benchmark.

    `only` selects sections, if the benchmark's module has `SECTIONS`.
    """

    def __call__(self, quick: bool, **only: Sequence[str]) -> Iterable[Case]: ...


def load(name: str) -> Cases:
    """Return the function `cases` of a benchmark."""
    return cast("Cases", importlib.import_module(f"bench.{name}").cases)


def sections(name: str) -> list[str]:
    """Return a benchmark's sections, in order.

    Each section can run alone. Most benchmarks have no sections.
    """
    return list(getattr(importlib.import_module(f"bench.{name}"), "SECTIONS", ()))


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; exits with a message if it is invalid."""
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__)
    parser.add_argument("name", nargs="*", help=f"one of: {', '.join(names())}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller data")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="SECTION",
        help="a part of one benchmark, e.g. `broker --only tls`; more than once for more parts",
    )
    parser.add_argument("--out", type=Path, help="where the JSON goes (bench-output/NAME.json)")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    parser.add_argument("--table", action="store_true", help="print the last results as Markdown")
    asked = parser.parse_args(arguments)
    if unknown := set(asked.name) - set(names()):
        parser.error(f"no benchmark named {', '.join(sorted(unknown))}; have: {', '.join(names())}")
    if asked.out and len(asked.name) != 1:
        parser.error("--out is for one benchmark: name it")
    if asked.only:
        _ensure_sections(parser, asked)
    return asked


def _ensure_sections(parser: argparse.ArgumentParser, asked: argparse.Namespace) -> None:
    if len(asked.name) != 1:
        parser.error("--only is for one benchmark: name it")
    have = sections(asked.name[0])
    if unknown := [each for each in asked.only if each not in have]:
        there = ", ".join(have) or "none"
        parser.error(f"{asked.name[0]} has no section {', '.join(unknown)}; have: {there}")


def run(name: str, *, quick: bool, only: Sequence[str], out: Path, console: Console) -> None:
    """Measure one benchmark, print its table and write its JSON."""
    results: list[Result] = []
    cases = load(name)(quick, only=only) if only else load(name)(quick)
    for result in Harness(quick=quick).run(cases):
        results.append(result)
        unit = result.case.unit
        console.print(f"  {result.case.case}: {report.human(result.ours.value, unit)} {unit}")
    report.print_table(console, name, results)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(report.as_json(name, results, quick=quick))
    console.print(f"written to {out}")


def main(arguments: Sequence[str]) -> None:
    """Run the benchmarks that the command line names."""
    asked = parse(arguments)
    if asked.list:
        print("\n".join(names()))
        return
    if asked.table:
        runs: list[report.RunJson] = [
            json.loads(path.read_text()) for path in sorted(OUT_DIR.glob("*.json"))
        ]
        print(report.markdown(runs), end="")
        return
    console = Console(width=None if sys.stdout.isatty() else 160)
    for name in asked.name or names():
        # A run of only some sections writes another file, so that it does not replace the result of
        # the whole benchmark.
        out = asked.out or OUT_DIR / f"{'-'.join([name, *asked.only])}.json"
        run(name, quick=asked.quick, only=asked.only, out=out, console=console)


if __name__ == "__main__":
    main(sys.argv[1:])
