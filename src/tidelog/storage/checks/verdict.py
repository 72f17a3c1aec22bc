"""Result of a directory's check in one sentence, for the first line of a command."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Protocol

from tidelog.amounts import bytes_text, plural
from tidelog.storage.checks.findings import Finding, Severity
from tidelog.types import TopicPartition


class Checked(Protocol):
    """Part of a `DirectoryCheck` that a verdict needs."""

    path: str

    @property
    def partitions(self) -> Collection[TopicPartition]:
        """The partitions that were checked."""

    @property
    def unseen(self) -> Sequence[Exception]:
        """Parts that could not be read."""

    def log_bytes(self) -> int:
        """Return the size of all log files."""


def check_verdict(
    check: Checked, findings: Sequence[Finding], open_findings: Sequence[Finding]
) -> str:
    """Return whether a directory is sound, how large it is, and what a repair did or could do.

    Args:
        check: The check.
        findings: Findings of the first check.
        open_findings: Findings that are left, after a repair if there was one.
    """
    topics = {name.topic for name in check.partitions}
    size = bytes_text(check.log_bytes())
    whole = f"{plural(len(topics), 'topic')}, {plural(len(check.partitions), 'partition')}, {size}"
    repaired = len({f.path for f in findings if f.repairable} - {f.path for f in open_findings})
    mended = f"; {plural(repaired, 'file')} repaired" if repaired else ""
    counts = Counter(finding.severity for finding in open_findings)
    if check.unseen:
        unread = plural(len(check.unseen), "part")
        return f"{check.path}: {unread} could not be read; the rest: {_found(counts)} in {whole}"
    if not counts[Severity.ERROR] and not counts[Severity.WARNING]:
        return f"{check.path} is sound: {whole}{mended}"
    repairable = len({finding.path for finding in open_findings if finding.repairable})
    hint = f"; --repair rebuilds {plural(repairable, 'file')}" if repairable else ""
    return f"{check.path} is damaged: {_found(counts)} in {whole}{mended}{hint}"


def _found(counts: Counter[Severity]) -> str:
    return ", ".join(plural(counts[each], each.value) for each in Severity if counts[each]) or (
        "nothing found"
    )
