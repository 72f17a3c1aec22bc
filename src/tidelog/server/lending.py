"""Cleanings that somebody else carries out: the job is lent, what it has made is swapped in here.

A job of tasks on other machines can't have the directory's lock. It asks for a partition's job,
writes the `.cleaned` files, and tells what there is; the swap, the history and the checkpoint are
the broker's. While a job is lent no cleaner looks at the partition. Whoever asks again for the same
partition takes it over: what the one before has made is dropped. So does a start of the broker, and
`LEND_MS` without an answer: then the cleaning is begun again from the checkpoint.

Belongs to the loop's thread; logs are looked at in the cleaners' threads.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from tidelog.errors import CleaningAborted, CorruptMessage, InvalidRequest
from tidelog.server.on_loop import LoopGate, log_dir_on_loop
from tidelog.storage import files
from tidelog.storage.compaction.eligibility import Verdict
from tidelog.storage.compaction.job import Cleaned, CleaningJob
from tidelog.storage.compaction.runner import (
    CleanerOptions,
    CleaningPlan,
    Look,
    look,
    plan_cleaning,
    take_in,
)
from tidelog.storage.compaction.swap import drop_cleaned
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.control.lending_verbs import TakeBack
    from tidelog.server.cleanings import Cleanings
    from tidelog.server.node import Node
    from tidelog.storage.log_dir import LogDir
    from tidelog.storage.topic_info import TopicInfo

# A job that nobody has answered for so long is given up.
LEND_MS: Final = 24 * 3_600_000
Hold = Callable[[TopicPartition], AbstractContextManager[object]]
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class _Lent:
    """A job that somebody carries out."""

    found: Look
    plan: CleaningPlan
    since_ms: int


class Lending:
    """The jobs that are lent."""

    def __init__(
        self,
        node: "Node",
        gate: LoopGate,
        threads: ThreadPoolExecutor,
        at_work: "Cleanings",
        hold: Hold,
    ) -> None:
        """None are.

        Args:
            node: The broker.
            gate: By which threads reach the loop.
            threads: Where logs are looked at.
            at_work: Partitions that a cleaner is at; those that are lent are entered.
            hold: Held while segments are swapped in.
        """
        self._node = node
        self._gate = gate
        self._threads = threads
        self._at_work = at_work
        self._hold = hold
        self._lent: dict[TopicPartition, _Lent] = {}

    async def begin(
        self, name: TopicPartition, *, roll: bool, is_asked: bool
    ) -> tuple[Verdict, CleaningJob | None]:
        """What may be cleaned of a partition, and the job that does it; None where nothing is due.

        Args:
            name: Which.
            roll: Finish its active segment first.
            is_asked: Also where it is not due.

        Raises:
            UnknownTopic: No such partition.
            InvalidRequest: A cleaner of the broker is at it, it is not compacted, or has a tier.
            TidelogError: What looking at it has met.
        """
        node = self._node
        if not node.log_dir.topic(name.topic).config.is_compacted:
            raise InvalidRequest(f"{name.topic} is not compacted: its cleanup.policy lacks compact")
        await self._end(name)
        if name in self._at_work:
            raise InvalidRequest(f"{name} is being compacted just now")
        self._at_work.add(name)
        try:
            await node.partitions.open_beside([name], node.work)
            partition = node.partitions.get(name.topic, name.partition)
            if roll and partition.failure is None:
                partition.log.roll()
            if partition.failure is None:
                await partition.flushed()
            found, plan = await self._in(partial(self._look, name, is_asked=is_asked))
        except BaseException:
            self._at_work.discard(name)
            raise
        if plan is None:
            self._at_work.discard(name)
            return found.verdict, None
        self._lent[name] = _Lent(found, plan, node.env.clock.monotonic_ms())
        return found.verdict, plan.job

    def _look(self, name: TopicPartition, *, is_asked: bool) -> tuple[Look, CleaningPlan | None]:
        config, log_dir = self._node.config, self._log_dir()
        options = CleanerOptions(
            dedupe_buffer_bytes=config.cleaner_map_bytes,
            load_factor=config.log_cleaner_io_buffer_load_factor,
            is_asked=is_asked,
        )
        found = look(log_dir, name, is_asked=is_asked, options=options)
        if found.verdict.is_reset:
            log_dir.note_cleaned(name, found.verdict.first_dirty)
        return found, None if found.verdict.due is None else plan_cleaning(log_dir, found, options)

    async def take_back(self, made: "TakeBack") -> bool:
        """Swap in what was made of a job; whether there is another pass to make.

        Raises:
            CleaningAborted: The job is not lent any more, or segments of it are others by now;
                nothing more is changed, and it can be begun again.
            CorruptMessage: Nothing that the job could have made; nothing was changed.
            StorageFailure: The disk failed.
        """
        name, cleaned = made.name, made.cleaned
        lent = self._lent.get(name)
        if lent is None or lent.plan.job.seed != made.seed:
            raise CleaningAborted(f"{name}: this cleaning is not lent (any more); begin it again")
        try:
            check(lent.plan.job, cleaned)
            await self._in(partial(self._take_in, lent, cleaned))
        finally:
            await self._end(name)
        job = lent.plan.job
        return job.map_from < cleaned.mapped_to < job.map_to

    def _take_in(self, lent: _Lent, cleaned: Cleaned) -> None:
        self._check_sizes(lent.plan.job.directory, cleaned)
        with self._hold(lent.plan.name):
            take_in(self._log_dir(), lent.found.log, lent.plan, cleaned)

    def _check_sizes(self, directory: str, cleaned: Cleaned) -> None:
        """Whoever had the job before may have written late; raises CleaningAborted."""
        fs = self._node.env.files
        for group in cleaned.groups:
            name = files.log_file_name(group.base_offset) + files.CLEANED_SUFFIX
            path = f"{directory}/{name}"
            if not fs.exists(path) or fs.stat(path).size != group.bytes_after:
                raise CleaningAborted(f"{path}: not what was announced; begin it again")

    async def _end(self, name: TopicPartition) -> None:
        """Nobody carries it out any more; what is left of its files goes."""
        lent = self._lent.pop(name, None)
        if lent is not None:
            fs, directory = self._node.env.files, lent.plan.job.directory
            await self._in(partial(drop_cleaned, fs, directory))
            self._at_work.discard(name)

    async def give_up_old(self) -> None:
        """End what nobody has answered for too long."""
        before_ms = self._node.env.clock.monotonic_ms() - LEND_MS
        for name in [name for name, lent in self._lent.items() if lent.since_ms <= before_ms]:
            await self._end(name)

    def forget(self, info: "TopicInfo") -> None:
        """A topic has gone, its files with it."""
        for name in [name for name in self._lent if name.topic == info.name]:
            del self._lent[name]
            self._at_work.discard(name)

    def _log_dir(self) -> "LogDir":
        return log_dir_on_loop(self._node.log_dir, self._gate)

    async def _in(self, work: Callable[[], _Answer]) -> _Answer:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


def check(job: CleaningJob, cleaned: Cleaned) -> None:
    """Refuse what this job can't have made; raises CorruptMessage."""
    ends = {source.base_offset: source.end_offset for source in job.sources}
    due = [group for group in job.groups if group.bases[0] < cleaned.mapped_to]
    if not job.map_from <= cleaned.mapped_to <= job.map_to or len(due) != len(cleaned.groups):
        raise CorruptMessage(
            f"mapped to {cleaned.mapped_to} with {len(cleaned.groups)} groups: the job maps"
            f" [{job.map_from}, {job.map_to}), {len(due)} groups are due"
        )
    for group, made in zip(due, cleaned.groups, strict=True):
        is_it = made.bases == group.bases and made.base_offset == group.bases[0]
        if not is_it or made.end_offset != ends[group.bases[-1]]:
            raise CorruptMessage(f"a segment at {made.base_offset} that is none of the job's")
        is_named = files.LOG_SUFFIX in made.suffixes and len(set(made.suffixes)) == len(
            made.suffixes
        )
        if not is_named or not set(made.suffixes) <= set(files.SEGMENT_SUFFIXES):
            raise CorruptMessage(f"files {made.suffixes} of a segment at {made.base_offset}")
