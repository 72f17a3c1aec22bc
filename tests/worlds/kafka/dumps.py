"""Sorts the output of Kafka's DumpLogSegments into damage, gaps and dumped files.

The exit status of Kafka's tool doesn't show an invalid file. The tool reports a wrong checksum as a
word on stdout, and wrong index entries as a list on stderr. Every line that is not known to be
harmless is taken as damage.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_DUMPING = re.compile(r"^Dumping (?P<file>.+)$")
_PASSED = re.compile(r"^(?P<file>.+) passed sanity check\.$")
# The tool prints isValid for messages of old formats, isvalid for batches of format 2.
_INVALID = re.compile(r"\bisvalid: false\b", re.IGNORECASE)
_TRAILING = re.compile(r"^Found \d+ invalid bytes at the end of ")
_GAPS = re.compile(r"^Non-consecutive offsets in (?P<file>.+)$")
_GAP = re.compile(r"^\s*(?P<before>-?\d+) is followed by (?P<after>-?\d+)$")


@dataclass(frozen=True, slots=True)
class Findings:
    """Findings of the tool in a set of files.

    Attributes:
        damage: Lines that report damage; empty for valid files.
        gaps: Each gap's file, and the offsets before and after the gap; valid only in a compacted
            log.
        dumped: Paths that the tool opened.
        passed: Index files that passed Kafka's own sanity check.
        lines: All lines on stdout.
    """

    damage: tuple[str, ...] = ()
    gaps: tuple[tuple[str, int, int], ...] = ()
    dumped: frozenset[str] = frozenset()
    passed: frozenset[str] = frozenset()
    lines: tuple[str, ...] = ()

    def __or__(self, other: "Findings") -> "Findings":
        return Findings(
            self.damage + other.damage,
            self.gaps + other.gaps,
            self.dumped | other.dumped,
            self.passed | other.passed,
            self.lines + other.lines,
        )

    @property
    def accepted(self) -> bool:
        """Whether the tool saw at least one file and found no damage and no gap."""
        return bool(self.dumped) and not self.damage and not self.gaps


def parse_dump(out: str, err: str, error: str | None, message: str | None) -> Findings:
    """Sort the tool's output; `error` is the class of the tool's exception, None without one."""
    told = out.splitlines()
    damage = [line for line in told if _INVALID.search(line) or _TRAILING.match(line)]
    gaps, complaints = _gaps(err.splitlines())
    damage += complaints
    if error is not None:
        damage.append(f"{error}: {message}")
    return Findings(
        tuple(damage),
        tuple(gaps),
        frozenset(match["file"] for line in told if (match := _DUMPING.match(line))),
        frozenset(match["file"] for line in told if (match := _PASSED.match(line))),
        tuple(told),
    )


def _gaps(err: Sequence[str]) -> tuple[list[tuple[str, int, int]], list[str]]:
    """Return the gaps that lines of stderr report, and the other lines.

    At the start of each file, the tool of 4.3.0 takes -1 for the previous offset. So it reports a
    gap at the first record of every segment except the first.
    """
    gaps = []
    others = []
    file = ""
    for line in err:
        if heading := _GAPS.match(line):
            file = heading["file"]
        elif gap := _GAP.match(line):
            if gap["before"] != "-1":
                gaps.append((file, int(gap["before"]), int(gap["after"])))
        else:
            others.append(line)
    return gaps, others
