"""Change the source in one place at a time, and check whether a test fails.

    ./run coverage                       first: records which tests run which line
    ./run mutations                      try 300 changes, drawn by seed 1
    ./run mutations --seed 7 --count 50  try 50 other changes
    ./run mutations --only NAME          repeat the change with this printed name
    ./run mutations --without tests/peers --without tests/spark

Prints a row for each change, then by package the share of changes that a test detects. If no test
detects a change, the changed code is equivalent or a test is missing:
docs/testing.md#coverage-and-mutations.
"""

import argparse
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from tests.mutations.sites import Mutation, modules, mutations
from tests.mutations.trial import Reach, Trials, Verdict

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = (
    "src/tidelog/storage",
    "src/tidelog/record",
    "src/tidelog/server",
    "src/tidelog/scan",
    "src/tidelog/spark",
    "src/tidelog/jobs",
)
KINDS: Final = ("comparison", "constant", "dropped call", "order of calls", "swapped arguments")


def drawn(packages: Sequence[str], count: int, seed: int) -> list[Mutation]:
    """Return `count` random changes, fewer if there are not so many.

    The draw goes round all pairs of a package and a kind of change: one change of each pair, then a
    second one, and so on.
    """
    pools: dict[tuple[str, str], list[Mutation]] = {}
    for package in packages:
        for path in modules(ROOT, [package]):
            for one in mutations(ROOT, path):
                pools.setdefault((package, one.kind), []).append(one)
    chance = random.Random(seed)
    for key in sorted(pools):
        chance.shuffle(pools[key])
    found: list[Mutation] = []
    while len(found) < count and any(pools.values()):
        for key in sorted(pools):
            if pools[key] and len(found) < count:
                found.append(pools[key].pop())
    return found


def _shown(verdict: Verdict) -> str:
    return f"{verdict.outcome:<11}  {verdict.seconds:5.0f} s  {verdict.mutation.name}  {verdict.by}"


def _summary(verdicts: Sequence[Verdict]) -> list[str]:
    rows = [f"{'':<22}{'changes':>8}{'killed':>8}{'share':>8}"]
    groups = [(package.rpartition("/")[2], package) for package in PACKAGES]
    for name, package in [*groups, ("all", "src")]:
        counts = Counter(v.outcome for v in verdicts if v.mutation.path.startswith(f"{package}/"))
        total, killed = sum(counts.values()), counts["killed"]
        if total:
            rows.append(f"{name:<22}{total:>8}{killed:>8}{killed / total:>8.1%}")
    return rows


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./run mutations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=1, help="which changes are drawn")
    parser.add_argument("--count", type=int, default=300, help="how many")
    parser.add_argument("--only", action="append", metavar="NAME", help="one change, by its name")
    parser.add_argument("--package", action="append", help="instead of all six packages")
    parser.add_argument(
        "--without", action="append", default=[], metavar="FOLDER", help="tests that are left out"
    )
    parser.add_argument(
        "--budget", type=float, default=300, help="seconds of tests for one change (300)"
    )
    parser.add_argument("--out", type=Path, help="write the verdicts as JSON, a line each")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if a change survived, else 0."""
    options = _parser().parse_args(arguments)
    packages = options.package or PACKAGES
    chosen = drawn(packages, sys.maxsize if options.only else options.count, options.seed)
    if options.only:
        chosen = [one for one in chosen if one.name in options.only]
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="tidelog-mutations-") as folder:
        trials = Trials(ROOT, Path(folder), options.budget, options.without)
        trials.open()
        reach = Reach(ROOT)
        for number, one in enumerate(chosen, 1):
            verdict = trials.judge(one, reach)
            verdicts.append(verdict)
            print(f"{number:>4}/{len(chosen)}  {_shown(verdict)}", flush=True)
            if options.out is not None:
                with options.out.open("a") as out:
                    out.write(json.dumps(asdict(verdict)) + "\n")
    print("\n".join(_summary(verdicts)))
    return int(any(v.outcome != "killed" for v in verdicts))


if __name__ == "__main__":
    sys.exit(main())
