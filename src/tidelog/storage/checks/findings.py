"""What a check says: one finding for each thing that is not as it should be."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final


class Severity(StrEnum):
    """How bad it is.

    - ERROR: bytes are wrong or gone; somebody gets a wrong answer, or none.
    - WARNING: nothing is lost, but a file is missing, stale, or not what it should be.
    - NOTE: worth knowing; the directory is sound all the same.
    """

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing found.

    Attributes:
        path: The file or directory concerned.
        severity: How bad it is.
        damage: What is wrong, with what was found and what would be right.
        remedy: What to do about it, or what happens by itself.
        position: Place in the file in bytes, None where it is about the whole file.
        offset: First logical offset concerned, None where there is none.
        repairable: Whether a repair can build the file anew from what is sound.
    """

    path: str
    severity: Severity
    damage: str
    remedy: str
    position: int | None = None
    offset: int | None = None
    repairable: bool = False

    @property
    def counts(self) -> bool:
        """Whether the directory is not sound because of it."""
        return self.severity is not Severity.NOTE

    def __str__(self) -> str:
        place = self.path
        if self.position is not None:
            place += f", position {self.position}"
        if self.offset is not None:
            place += f", offset {self.offset}"
        return f"{place}: {self.damage}; {self.remedy}"


REPAIR: Final = "--repair builds it anew from the log"
LOG_FIRST: Final = "restore the log first; until then readers do without it"


def derived(
    path: str,
    damage: str,
    *,
    severity: Severity = Severity.ERROR,
    position: int | None = None,
    offset: int | None = None,
    remedy: str = REPAIR,
) -> Finding:
    """A finding on a file that a repair can build anew."""
    return Finding(
        path=path,
        severity=severity,
        damage=damage,
        remedy=remedy,
        position=position,
        offset=offset,
        repairable=True,
    )


def note(path: str, damage: str, remedy: str) -> Finding:
    """A finding that leaves the directory sound."""
    return Finding(path=path, severity=Severity.NOTE, damage=damage, remedy=remedy)


def later(finding: Finding) -> Finding:
    """The finding, which promises no repair since the log must be put right first.

    Half an index would pass for a whole one, and what is wrong in the log would be taken over.
    """
    return replace(finding, repairable=False, remedy=LOG_FIRST) if finding.repairable else finding
