"""Checks of `leader-epoch-checkpoint` against the epochs that the batches have."""

from collections.abc import Iterator, Sequence

from tidelog.errors import CorruptFile
from tidelog.storage.checks.findings import Finding, Severity, derived
from tidelog.storage.checks.log_file import EpochSpan
from tidelog.storage.epochs import LeaderEpochs


def check_epochs(
    path: str, data: bytes | None, spans: Sequence[EpochSpan], *, log_start: int, log_end: int
) -> Iterator[Finding]:
    """What is wrong in the file.

    Args:
        path: The file.
        data: Its bytes, None where there is none.
        spans: The epochs of the log's batches.
        log_start: Log start offset: epochs below are forgotten.
        log_end: Log end offset.
    """
    if data is None:
        if spans:
            damage = f"missing; the batches have epochs up to {spans[-1].epoch}"
            yield derived(path, damage, severity=Severity.WARNING)
        return
    try:
        epochs = LeaderEpochs.decode(data)
    except CorruptFile as error:
        yield derived(path, error.reason, position=error.at)
        return
    for span in spans:
        yield from _check_span(path, epochs, span, log_start)
    latest = epochs.latest
    if latest is not None and latest.start_offset > log_end:
        damage = f"epoch {latest.epoch} begins at {latest.start_offset}, the log ends at {log_end}"
        yield derived(path, damage, severity=Severity.WARNING, offset=latest.start_offset)


def _check_span(
    path: str, epochs: LeaderEpochs, span: EpochSpan, log_start: int
) -> Iterator[Finding]:
    """The first and the last batch of an epoch must be of that epoch to the file, too."""
    if span.last_offset < log_start:
        return  # forgotten with its records
    for offset in sorted({max(span.first_offset, log_start), span.last_offset}):
        said = epochs.epoch_for(offset)
        if said == span.epoch:
            continue
        damage = f"it says epoch {said} for offset {offset}, the batch there has {span.epoch}"
        severity = Severity.ERROR
        if said is None:  # as when records were deleted up to there
            damage = f"it knows no epoch of offset {offset}, the batch there has {span.epoch}"
            severity = Severity.WARNING
        yield derived(path, damage, severity=severity, offset=offset)


def rebuild_epochs(
    data: bytes | None, spans: Sequence[EpochSpan], *, log_start: int, log_end: int
) -> bytes:
    """The file's text from the batches.

    An epoch above all of them that the old text has at the log end stays there: its records were
    lost, and it must not be used again.
    """
    epochs = LeaderEpochs((span.epoch, span.first_offset) for span in spans)
    epochs.truncate_from_start(log_start)
    try:
        lost = LeaderEpochs.decode(data or b"").latest
    except CorruptFile:
        lost = None
    if lost is not None and lost.epoch > epochs.latest_epoch and lost.start_offset >= log_end:
        epochs.assign(lost.epoch, log_end)
    return epochs.encode()
