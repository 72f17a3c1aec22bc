"""Draws docs/generations.svg: bytes written and read for each space factor, from the model.

`PYTHONPATH=src:. python tools/generations_plot.py`; takes about ten seconds. The model is
`bench/generations_model.py`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import matplotlib as mpl
from bench.generations_model import ModelLog, Workload, brute_force, generational
from matplotlib.figure import Figure

TARGET: Final = Path(__file__).parent.parent / "docs" / "generations.svg"
FACTORS: Final = (1.5, 2.0, 2.5, 3.0, 4.0)
ROUNDS: Final = 12
# Both colors have a contrast above 4.5 on white.
MARKS: Final = {"generational": ("#0072b2", "o-"), "brute force": ("#a34700", "s--")}
STYLE: Final = {"svg.fonttype": "none", "svg.hashsalt": "generations", "font.size": 12}

Curve = Mapping[float, float]


def measure(kind: str) -> dict[str, dict[str, Curve]]:
    """Return the bytes `written` and `read` per appended byte: one curve for each scheduler."""
    found: dict[str, dict[str, dict[float, float]]] = {
        what: {name: {} for name in MARKS} for what in ("written", "read")
    }
    for factor in FACTORS:
        work = Workload(kind=kind, keys=2048, segments=32, rounds=ROUNDS, factor=factor)
        for name, scheduler in (("generational", generational), ("brute force", brute_force)):
            made = ModelLog(work).run(scheduler)
            found["written"][name][factor] = made.written / ROUNDS
            found["read"][name][factor] = made.read_total / ROUNDS
    return {what: dict(curves) for what, curves in found.items()}


def draw(panels: Sequence[tuple[str, Mapping[str, Curve]]]) -> None:
    """Write the picture with a panel for each title and a line for each scheduler."""
    with mpl.rc_context({**STYLE}):  # type: ignore[dict-item] # any setting
        figure = Figure(figsize=(820 / 72, 620 / 72), dpi=72, facecolor="white", layout="tight")
        for axes, (title, curves) in zip(figure.subplots(2, 2).flat, panels, strict=True):
            for name, curve in curves.items():
                color, line = MARKS[name]
                axes.plot(list(curve), list(curve.values()), line, color=color, label=name)
            axes.set_title(title, loc="left", fontsize=12)
            axes.set_xlabel("space, in live sizes")
            axes.set_ylim(bottom=0)
            axes.grid(visible=True, color="#d9dfe5")
            axes.legend(frameon=False)
        figure.savefig(TARGET, format="svg", metadata={"Date": None})


def main() -> None:
    """Measure all curves and draw them."""
    panels: list[tuple[str, Mapping[str, Curve]]] = []
    for kind in ("uniform", "zipf"):
        found = measure(kind)
        panels.extend((f"{kind}: {what} per byte", found[what]) for what in ("written", "read"))
    draw(panels)


if __name__ == "__main__":
    main()
