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
        for offset in {max(span.first_offset, log_start), span.last_offset}:
            if offset >= log_start and epochs.epoch_for(offset) != span.epoch:
                said = epochs.epoch_for(offset)
                damage = (
                    f"it says epoch {'none' if said is None else said} for offset {offset}, the"
                    f" batch there has {span.epoch}"
                )
                yield derived(path, damage, offset=offset)
    latest = epochs.latest
    if latest is not None and latest.start_offset > log_end:
        damage = f"epoch {latest.epoch} begins at {latest.start_offset}, the log ends at {log_end}"
        yield derived(path, damage, severity=Severity.WARNING, offset=latest.start_offset)


def rebuild_epochs(
    data: bytes | None, spans: Sequence[EpochSpan], *, log_start: int, log_end: int
) -> bytes:
    """The file's text from the batches.

    An epoch that the old text knows above all of them stays, at the log end: its records were lost,
    and it must not be used again.
    """
    epochs = LeaderEpochs((span.epoch, span.first_offset) for span in spans)
    epochs.truncate_from_start(log_start)
    try:
        lost = LeaderEpochs.decode(data or b"").latest_epoch
    except CorruptFile:
        lost = -1
    if lost > epochs.latest_epoch:
        epochs.assign(lost, log_end)
    return epochs.encode()
