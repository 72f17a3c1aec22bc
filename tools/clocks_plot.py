"""Draws docs/clocks.svg: the two times of the demo's flights around noon of the day of the storm.

`PYTHONPATH=src:. python tools/clocks_plot.py`; takes a few seconds. Needs `tidelog[demo]`.
"""

from pathlib import Path
from typing import Final

from examples.demo.flights import Flights, flights_of, read_source, source_path

TARGET: Final = Path(__file__).parent.parent / "docs" / "clocks.svg"
# 8 February 2013, 12:00 in New York.
NOON_MS: Final = 1_360_342_800_000
MINUTE_MS: Final = 60_000
# Range of the axes, in minutes from noon.
SPAN: Final = (-120, 150)
# Ranges [start, end) in minutes from noon. The picture shows the flights that were due in SHOWN. Of
# the flights that were due in DAY, it also shows those that were due before noon and left at noon
# or later, and those that were due at noon or later and left before noon.
SHOWN: Final = (-45, 45)
DAY: Final = (-12 * 60, 12 * 60)
WIDTH, LEFT, RIGHT, TOP, BOTTOM, HEIGHT = 820, 12, 12, 62, 178, 236
# Colors of marks and texts on a light and on a dark page; their contrast with the page is at least
# 4.5.
STYLE: Final = """
svg { font: 13px system-ui, sans-serif }
text { fill: #24292f } .rest { stroke: #6e7781; opacity: .45 } .axis { stroke: #57606a }
.late { stroke: #b35900 } .early { stroke: #0969da } text.late { fill: #b35900; stroke: none }
text.early { fill: #0969da; stroke: none } .noon { stroke: #24292f; stroke-dasharray: 4 3 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .rest { stroke: #8b949e } .axis { stroke: #8b949e }
  .late { stroke: #f0a04b } .early { stroke: #6cb6ff } text.late { fill: #f0a04b }
  text.early { fill: #6cb6ff } .noon { stroke: #e6edf3 }
}
"""


def draw(flights: Flights) -> str:
    """Return the picture: each flight is a line from its scheduled to its actual departure."""
    groups: dict[str, list[tuple[int, int]]] = {"rest": [], "early": [], "late": []}
    times = zip(flights.scheduled_ms.tolist(), flights.departed_ms.tolist(), strict=True)
    for due, left in times:
        pair = (due - NOON_MS) // MINUTE_MS, (left - NOON_MS) // MINUTE_MS
        if not all(DAY[0] <= minute < DAY[1] for minute in pair):
            continue
        side = "rest" if (pair[0] < 0) == (pair[1] < 0) else "late" if pair[0] < 0 else "early"
        if side != "rest" or SHOWN[0] <= pair[0] < SHOWN[1]:
            groups[side].append(pair)
    lines = "".join(
        f'<path class="{side}" d="{"".join(f"M{_x(a)} {TOP}L{_x(b)} {BOTTOM}" for a, b in pairs)}"'
        f' stroke-width="{1 if side == "rest" else 1.6}" fill="none"/>'
        for side, pairs in groups.items()
    )
    late, early = len(groups["late"]), len(groups["early"])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f"<title>The two times of flights around noon</title><style>{STYLE}</style>{lines}"
        f"{_axis(TOP, -8)}{_axis(BOTTOM, 18)}"
        f'<path class="noon" d="M{_x(0)} {TOP - 24}V{BOTTOM + 24}"/>'
        f'<text x="{LEFT}" y="16">due: create time, the timestamp that Kafka keeps</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">left: append time, when the log took the record</text>'
        f'<text class="late" x="{WIDTH - RIGHT}" y="16" text-anchor="end">{late} due before noon,'
        " left after it</text>"
        f'<text class="early" x="{WIDTH - RIGHT}" y="{HEIGHT - 6}" text-anchor="end">{early} left'
        " before noon, due after it</text></svg>\n"
    )


def _x(minute: int) -> float:
    return round(LEFT + (minute - SPAN[0]) * (WIDTH - LEFT - RIGHT) / (SPAN[1] - SPAN[0]), 1)


def _axis(y: int, text_at: int) -> str:
    labels = "".join(
        f'<text x="{_x(hour * 60)}" y="{y + text_at}" text-anchor="middle">{12 + hour}:00</text>'
        for hour in range(SPAN[0] // 60 + 1, SPAN[1] // 60 + 1)
    )
    return f'<path class="axis" d="M{LEFT} {y}H{WIDTH - RIGHT}"/>{labels}'


if __name__ == "__main__":
    TARGET.write_text(draw(flights_of(read_source(source_path()))))
