"""Runs the oracle's scripts on tidelog's own log, so that one list of steps drives both sides."""

import base64
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import cast

from tests.faults.refused import cut_to_sound_prefix
from tests.worlds.directories.logs import use_leader_epoch
from tests.worlds.kafka.oracle import Script
from tests.worlds.waiting import Patience

from tidelog.config import TopicConfig
from tidelog.env import Env, ManualClock
from tidelog.errors import DamagedLog, TidelogError
from tidelog.storage.clocks.append_clock import ClockWatch
from tidelog.storage.log.append_types import AppendOrigin, AppendResult, AppendTerms
from tidelog.storage.log.log import Log
from tidelog.storage.log.log_loader import LogOptions
from tidelog.storage.open_files import FilePool, MapCache
from tidelog.storage.segment.segment import SegmentContext
from tidelog.types import TopicPartition

Step = Mapping[str, object]
Answer = object


def topic_uuid(text: str | None) -> uuid.UUID:
    """Return a topic id from Kafka's text form, all zero for none."""
    if text is None:
        return uuid.UUID(int=0)
    return uuid.UUID(bytes=base64.urlsafe_b64decode(text + "=="))


class OurLog:
    """One partition of tidelog, whose clock a script sets. Call `end` after the last `step`."""

    def __init__(self, script: Script) -> None:
        self.clock = ManualClock(script.now_ms)
        self.env = Env(clock=self.clock)
        self.reports: list[str] = []
        directory = script.directory
        directory.mkdir(parents=True, exist_ok=True)
        topic, _, partition = directory.name.rpartition("-")
        config, _ = TopicConfig.parse(script.config)
        self.log_start = script.log_start
        self._pool = FilePool(self.env.files)
        self.context = SegmentContext(
            env=self.env,
            directory=str(directory),
            topic_partition=TopicPartition(topic, int(partition)),
            topic_id=topic_uuid(script.topic_id),
            config=config,
            pool=self._pool,
            maps=MapCache(self.env.files),
            report=self.reports.append,
        )
        self.watch = ClockWatch(self.clock, limit_ms=2**62)
        options = LogOptions(
            watch=self.watch,
            recovery_point=None if script.clean else script.recovery_point,
            log_start_offset=script.log_start,
            save_log_start=self._save_log_start,
        )
        self.log = Log.open_writable(self.context, options)
        patience = Patience()
        while isinstance(self.log.failure, DamagedLog):
            patience.check(self.log.failure)
            # Kafka truncates the log where the damage begins, and so removes the valid batches that
            # follow. tidelog leaves this decision to the log's owner.
            cut_to_sound_prefix(self.log)
            self.log = Log.open_writable(self.context, options)

    def _save_log_start(self, offset: int) -> None:
        self.log_start = offset

    def end(self, how: str) -> None:
        """Close as in a controlled shutdown, or only release the handles as in a crash."""
        if how == "close":
            self.log.close()
        self._pool.close()

    def step(self, step: Step) -> Answer:
        """Run a step; return the result in the oracle's form, with Kafka's code for an error."""
        if "now_ms" in step:
            self.clock.set(cast("int", step["now_ms"]))
        try:
            return STEPS[str(step["do"])](self, step)
        except TidelogError as error:
            return {"error": type(error).__name__, "code": error.code}


def _append(ours: OurLog, step: Step) -> Answer:
    data = cast("bytes", step["data"])
    epoch = cast("int", step.get("leader_epoch", 0))
    origin = AppendOrigin[str(step.get("origin", "CLIENT"))]
    if origin is AppendOrigin.REPLICATION:
        return _answer(ours.log.follower.append(data))
    if ours.log.leader_epoch != epoch:
        use_leader_epoch(ours.log, epoch)
    return _answer(ours.log.append_batches(data, AppendTerms(origin)))


def _answer(result: AppendResult) -> Answer:
    return {"first_offset": result.base_offset, "last_offset": result.last_offset}


def _roll(ours: OurLog, step: Step) -> Answer:
    ours.log.roll()
    return {"base_offset": ours.log.segments[-1].base_offset}


def _flush(ours: OurLog, step: Step) -> Answer:
    ours.log.flush()
    return {"recovery_point": ours.log.recovery_point}


def _truncate(ours: OurLog, step: Step) -> Answer:
    before = ours.log.log_end_offset
    return {"truncated": ours.log.truncate_to(cast("int", step["offset"])) < before}


def _delete_records(ours: OurLog, step: Step) -> Answer:
    before = ours.log.log_start_offset
    return {"moved": ours.log.delete_records(cast("int", step["offset"])) > before}


def _retention(ours: OurLog, step: Step) -> Answer:
    return {"deleted": len(ours.log.apply_retention())}


def _offsets_for_times(ours: OurLog, step: Step) -> Answer:
    found = [ours.log.offset_for_time(time) for time in cast("list[int]", step["timestamps"])]
    return [f and [f.offset, f.timestamp, f.leader_epoch] for f in found]


def _state(ours: OurLog, step: Step) -> Answer:
    log = ours.log
    return {
        "log_start_offset": log.log_start_offset,
        "log_end_offset": log.log_end_offset,
        "last_stable_offset": log.last_stable_offset,
        "segments": [
            {"base_offset": s.base_offset, "size_bytes": s.size_bytes} for s in log.segments
        ],
    }


STEPS: dict[str, Callable[[OurLog, Step], Answer]] = {
    "append": _append,
    "roll": _roll,
    "flush": _flush,
    "truncate": _truncate,
    "delete_records": _delete_records,
    "retention": _retention,
    "offsets_for_times": _offsets_for_times,
    "state": _state,
}


def run_ours(script: Script) -> list[Answer]:
    """Return the results of a script's steps on our log."""
    ours = OurLog(script)
    try:
        return [ours.step(step) for step in script.steps]
    finally:
        ours.end(script.end)


KAFKA_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex", ".snapshot")
KAFKA_NAMES = ("leader-epoch-checkpoint",)


def kafka_files(directory: Path) -> dict[str, bytes]:
    """Return name and content of every file that Kafka also has in a partition's directory."""
    return {
        file.name: file.read_bytes()
        for file in sorted(directory.iterdir())
        if file.suffix in KAFKA_SUFFIXES or file.name in KAFKA_NAMES
    }
