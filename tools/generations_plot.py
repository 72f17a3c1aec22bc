"""Draws docs/generations.svg: bytes written and read against space, by the model of the bench.

`PYTHONPATH=src:. python tools/generations_plot.py`; takes some ten seconds.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from bench.generations_model import ModelLog, Workload, brute_force, generational

TARGET: Final = Path(__file__).parent.parent / "docs" / "generations.svg"
FACTORS: Final = (1.5, 2.0, 2.5, 3.0, 4.0)
ROUNDS: Final = 12
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 360, 260, 46, 30, 40
COLOURS: Final = {"generational": "#1f6fb4", "brute force": "#b4541f"}

Curve = Mapping[float, float]


def measure(kind: str) -> dict[str, dict[str, Curve]]:
    """`written` and `read` -> scheduler -> factor -> bytes for each byte appended."""
    found: dict[str, dict[str, dict[float, float]]] = {
        what: {name: {} for name in COLOURS} for what in ("written", "read")
    }
    for factor in FACTORS:
        work = Workload(kind=kind, keys=2048, segments=32, rounds=ROUNDS, factor=factor)
        for name, scheduler in (("generational", generational), ("brute force", brute_force)):
            made = ModelLog(work).run(scheduler)
            found["written"][name][factor] = made.written / ROUNDS
            found["read"][name][factor] = made.read_total / ROUNDS
    return {what: dict(curves) for what, curves in found.items()}


def draw(panels: Sequence[tuple[str, Mapping[str, Curve]]]) -> str:
    """The whole picture: a panel for each title, a line for each scheduler."""
    body = "".join(
        f'<g transform="translate({number * WIDTH} 0)">{_panel(title, curves)}</g>'
        for number, (title, curves) in enumerate(panels)
    )
    size = f'viewBox="0 0 {WIDTH * len(panels)} {HEIGHT}"'
    font = 'font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>{body}</svg>\n'


def _panel(title: str, curves: Mapping[str, Curve]) -> str:
    top = max(value for curve in curves.values() for value in curve.values())
    low, high = min(FACTORS), max(FACTORS)

    def place(factor: float, value: float) -> str:
        x = LEFT + (factor - low) / (high - low) * (WIDTH - LEFT - 20)
        y = HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)
        return f"{x:.1f},{y:.1f}"

    parts = [f'<text x="{LEFT}" y="16">{title}</text>']
    for factor in FACTORS:
        x = place(factor, 0).split(",")[0]
        parts.append(f'<text x="{x}" y="{HEIGHT - 22}" text-anchor="middle">{factor:g}</text>')
    for value in (0.0, top / 2, top):
        y = place(low, value).split(",")[1]
        parts.append(f'<text x="{LEFT - 6}" y="{y}" text-anchor="end">{value:.1f}</text>')
        parts.append(f'<path d="M{place(low, value)} L{place(high, value)}" stroke="#ccc"/>')
    for number, (name, curve) in enumerate(curves.items()):
        points = " ".join(place(factor, value) for factor, value in curve.items())
        colour = COLOURS[name]
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        line_y = TOP + 14 * number
        parts.append(f'<text x="{WIDTH - 110}" y="{line_y}" fill="{colour}">{name}</text>')
    parts.append(f'<text x="{LEFT}" y="{HEIGHT - 6}">space, in live sizes</text>')
    return "".join(parts)


def main() -> None:
    """Measure and draw."""
    panels: list[tuple[str, Mapping[str, Curve]]] = []
    for kind in ("uniform", "zipf"):
        found = measure(kind)
        panels.extend((f"{kind}: {what} per byte", found[what]) for what in ("written", "read"))
    TARGET.write_text(draw(panels))


if __name__ == "__main__":
    main()
