"""Opens a disk after a crash and compares its content with the promises."""

from collections.abc import Iterable, Sequence

from tests.fault.promise import DirPromise, Kept, LogPromise, Marker
from tests.fault.workload import ROOT, WRITABLE
from tests.faults import START_MS, CrashState, DamageFileSystem, Keep, reopen, seeded_env
from tests.faults.refused import logs_of, opened

from tidelog.errors import UnknownTopic
from tidelog.storage.directory.log_dir import LogDir
from tidelog.storage.files import CLEAN_SHUTDOWN_FILE
from tidelog.storage.log.log import Log
from tidelog.types import ClockName, IsolationLevel, NewRecord, TopicPartition

# Time in ms of the machine's restart after a crash: ten minutes after the start of the workload's
# clock.
RESTART_MS = START_MS + 600_000
COMMITTED = IsolationLevel.READ_COMMITTED


def judge(state: CrashState, before: DirPromise, after: DirPromise) -> None:
    """Recover, compare with the promises, and assert that a second recovery changes nothing."""
    files = reopen(state)
    judge_directory(recover(files), before, after)
    if f"{ROOT}/{CLEAN_SHUTDOWN_FILE}" in state.contents():
        # `judge_idempotence` compares the files before and after a recovery. Opening after a clean
        # stop recovers nothing, so the files still have the indexes that appends wrote. A recovery
        # may write different, equally valid indexes. So recover once before the comparison.
        files = reopen(files.crash(Keep.EVERYTHING))
        recover(files)
    judge_idempotence(files)
    judge_going_on(files)


def judge_quickly(state: CrashState, before: DirPromise, after: DirPromise) -> None:
    """Recover, and compare the directory with the promises."""
    judge_directory(recover(reopen(state)), before, after)


def recover(files: DamageFileSystem) -> LogDir:
    """Open the directory and all its partitions for writing, after a crash."""
    env = seeded_env(1, files=files, now_ms=RESTART_MS)
    return opened(lambda: LogDir.open(ROOT, env=env, options=WRITABLE))


def judge_directory(directory: LogDir, before: DirPromise, after: DirPromise) -> None:
    """Assert that each topic has the content of a promise; the directory is not closed."""
    names = set(directory.topics())
    allowed = before.topics | after.topics
    needed = before.topics & after.topics
    assert needed <= names <= allowed, f"topics {names}, needed {needed}, allowed {allowed}"
    for name in {**before.logs, **after.logs}:
        if name.topic in names:
            log = directory.log(name.topic, name.partition)
            judge_log(log, [p.logs[name] for p in (after, before) if name in p.logs])
    if after.is_commit:
        judge_commit(directory, before, after)
    for topic in allowed - names:
        _expect_unknown(directory, topic)


def judge_commit(directory: LogDir, before: DirPromise, after: DirPromise) -> None:
    """Assert that all partitions of a commit have its records, or that none has them."""
    outcomes = {
        name: _outcome(directory, name, before.logs[name].end, promise.end)
        for name, promise in after.logs.items()
        if promise.end > before.logs[name].end
    }
    assert len(set(outcomes.values())) <= 1, f"half of a commit is visible: {outcomes}"


def _outcome(directory: LogDir, name: TopicPartition, before: int, after: int) -> bool:
    end = directory.log(name.topic, name.partition).log_end_offset
    assert end <= before or end == after, f"{name} ends at {end}: before {before}, then {after}"
    return end == after


def _expect_unknown(directory: LogDir, name: str) -> None:
    try:
        directory.log(name, 0)
    except UnknownTopic:
        return
    raise AssertionError(f"deleted topic {name} still opens")


def judge_log(log: Log, versions: Sequence[LogPromise]) -> LogPromise:
    """Assert that the log has the records of one of the promises, in whole batches.

    Returns:
        The promise whose records the log has.
    """
    start, end = log.log_start_offset, log.log_end_offset
    durable = min(version.durable_end for version in versions)
    assert end >= durable, f"the log ends at {end}, everything below {durable} was synced"
    found = list(log.records())
    version = _version_of(log, found, versions)
    starts = [version.start for version in versions]
    assert min(starts) <= start <= max(starts), f"the log starts at {start}, asked for {starts}"
    # A log may also end at the first offset of a batch: if an append skips offsets and rolls, a
    # crash may leave only its new, empty segment.
    ends = {0, start, *(edge for batch in version.batches for edge in batch)}
    assert end in ends, f"the log ends at {end}, inside a batch"
    assert list(log.records(isolation=COMMITTED)) == [
        record
        for record in found
        if record.offset in {kept.offset for kept in version.committed(start, end)}
    ]
    judge_batches(log, version, min(other.epoch for other in versions))
    judge_indexes(log)
    there = version.everything_within(start, end)
    judge_append_times(log, there)
    judge_lookups(log, there)
    judge_duplicates(log, version)
    return version


def _version_of(log: Log, found: Iterable[object], versions: Sequence[LogPromise]) -> LogPromise:
    start, end = log.log_start_offset, log.log_end_offset
    there = [_facts(record) for record in found]
    for version in versions:
        if end <= version.end and there == [_facts(k) for k in version.within(start, end)]:
            return version
    wanted = [_facts(kept) for kept in versions[0].within(start, end)]
    raise AssertionError(f"records of [{start}, {end}) are nobody's:\n{there}\nlike {wanted}")


def _facts(record: object) -> tuple[object, ...]:
    return tuple(getattr(record, name) for name in ("offset", "timestamp", "key", "value"))


def judge_batches(log: Log, version: LogPromise, epoch: int) -> None:
    """Assert that batches and epoch file have the promised epochs.

    The log's current leader epoch must be higher than `epoch` and than the epochs of all batches.
    """
    epochs = {kept.offset: kept.leader_epoch for kept in version.records}
    previous = -1
    for part in log.slices():
        for _, batch in part.batches():
            assert batch.is_valid()
            assert batch.leader_epoch >= previous
            previous = batch.leader_epoch
            if batch.base_offset in epochs:
                at, found = batch.base_offset, batch.leader_epoch
                assert found == epochs[at], f"offset {at} has epoch {found}, not {epochs[at]}"
            first = max(batch.base_offset, log.log_start_offset)
            assert log.leader_epochs.epoch_for(first) == batch.leader_epoch
    assert log.leader_epoch > max(previous, epoch), "a leader epoch is used again"


def judge_indexes(log: Log) -> None:
    """Assert that the indexes are valid, and that each entry points to the start of a batch."""
    for segment in log.segments:
        segment.offset_index.check(segment.size_bytes)
        segment.time_index.check()
        starts = {at: batch.last_offset for at, batch in segment.walk_file(0, segment.size_bytes)}
        for offset, position in segment.offset_index.entries():
            assert starts[position] == offset
        largest = max(
            (batch.max_timestamp for _, batch in segment.walk_file(0, segment.size_bytes)),
            default=-1,
        )
        assert segment.largest_timestamp == largest


def judge_append_times(log: Log, there: Sequence[Kept | Marker]) -> None:
    """Assert that each record's append time is right or unknown."""
    for record in there:
        known = log.append_time_of(record.offset)
        assert known in (None, record.append_ms), f"{record} has append time {known}"


def judge_duplicates(log: Log, version: LogPromise) -> None:
    """Send batches again; assert that each gets its old offset, and that nothing is written."""
    start, end = log.log_start_offset, log.log_end_offset
    for sent in version.last_sent(end).values():
        if sent.first_offset < start:
            continue
        answer = log.append_batches(sent.data)
        assert answer.is_duplicate, f"{sent} is in the log, and was taken again"
        assert (answer.base_offset, answer.last_offset) == (sent.first_offset, sent.last_offset)
        assert answer.log_append_time_ms == sent.answered_ms
    assert log.log_end_offset == end


def judge_lookups(log: Log, there: Sequence[Kept | Marker]) -> None:
    """Compare searches by time with scans of all records; as in Kafka, control records count."""
    own = [(record.offset, record.timestamp) for record in there]
    times = [(record.offset, log.append_time_of(record.offset)) for record in there]
    known = [(offset, ms) for offset, ms in times if ms is not None]
    for clock, pairs in ((ClockName.RECORD, own), (ClockName.APPEND, known)):
        for target in _targets([ms for _, ms in pairs]):
            found = log.offset_for_time(target, clock=clock)
            answer = None if found is None else (found.offset, found.timestamp)
            wanted = next(((offset, ms) for offset, ms in pairs if ms >= target), None)
            assert answer == wanted, f"{clock} clock, {target}: {answer}, {wanted} is right"


def _targets(times: Sequence[int]) -> list[int]:
    """Return 0, the first, middle and last time (>= 0), and 1 ms after each of these three."""
    known = sorted({time for time in times if time >= 0})
    picked = known[:1] + known[len(known) // 2 : len(known) // 2 + 1] + known[-1:]
    return sorted({0, *(time + step for time in picked for step in (0, 1))})


def judge_idempotence(files: DamageFileSystem) -> None:
    """Assert that a second recovery, after a crash at the end of the first, changes nothing."""
    recovered = files.crash(Keep.EVERYTHING)
    again = reopen(recovered)
    directory = recover(again)
    for log in logs_of(directory):
        assert log.recovery_report.truncated_bytes == 0
    assert again.crash(Keep.EVERYTHING).contents() == recovered.contents()


def judge_going_on(files: DamageFileSystem) -> None:
    """Assert that each partition accepts a record, and still has this record after a clean stop."""
    recovered = reopen(files.crash(Keep.EVERYTHING))
    directory = recover(recovered)
    offsets = {
        log.topic_partition: log.append([NewRecord(key=b"k", value=b"next")]).base_offset
        for log in logs_of(directory)
    }
    assert offsets == {log.topic_partition: log.log_end_offset - 1 for log in logs_of(directory)}
    directory.close()
    for log in logs_of(recover(recovered)):
        found = [record.value for record in log.records(offsets[log.topic_partition])]
        assert found == [b"next"]
