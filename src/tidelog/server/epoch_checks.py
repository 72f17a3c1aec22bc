"""What a broker says of leader epochs: is the asker's right, and where does one end.

Source: KIP-101, KIP-320; Kafka 4.x Partition.checkCurrentLeaderEpoch, LeaderEpochFileCache.
"""

from tidelog.error_codes import ErrorCode
from tidelog.storage.epochs import LeaderEpochs
from tidelog.storage.log import Log
from tidelog.types import NO_LEADER_EPOCH


def epoch_problem(log: Log, epoch: int) -> int:
    """The error code for who thinks that a log is led under `epoch`, 0 where that is right.

    -1 says nothing, and is right.
    """
    if epoch in (NO_LEADER_EPOCH, log.leader_epoch):
        return 0
    return (
        ErrorCode.FENCED_LEADER_EPOCH
        if epoch < log.leader_epoch
        else ErrorCode.UNKNOWN_LEADER_EPOCH
    )


def epochs_of(log: Log) -> LeaderEpochs:
    """All epochs, the present one too: a log notes it with its first record, Kafka at once."""
    known = log.leader_epochs
    if known.latest_epoch >= log.leader_epoch:
        return known
    epochs = LeaderEpochs(known.entries)
    epochs.assign(log.leader_epoch, log.log_end_offset)
    return epochs


def end_of_epoch(log: Log, epoch: int) -> tuple[int, int]:
    """The largest epoch not above `epoch`, and its end; -1 and -1 where that can't be said."""
    return epochs_of(log).end_offset_for(epoch, log.log_end_offset)
