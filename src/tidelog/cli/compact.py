"""`tidelog compact`: the last record of each key, in finished segments."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from tidelog.cli import output
from tidelog.cli.choices import Format
from tidelog.cli.cluster_options import Place
from tidelog.cli.compact_plan import show_plan
from tidelog.cli.opening import open_directory
from tidelog.cli.output import Cell
from tidelog.cli.problems import ExitCode
from tidelog.cli.surroundings import Surroundings
from tidelog.cli.targets import parse_target, partitions_of
from tidelog.control.compact_verb import Compacted, compacted, read_report, wishes
from tidelog.directory import Directory
from tidelog.errors import DirectoryLocked, InvalidRequest
from tidelog.storage.compaction.process import InProcess
from tidelog.storage.compaction.runner import CleanerOptions, clean_partition
from tidelog.storage.roll import RollReason
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    from tidelog.control.client import ControlClient

_SHOWN: Final = (
    "segments_before",
    "segments_after",
    "records_before",
    "records_after",
    "bytes_before",
    "bytes_after",
    "cleaned_to",
)
_COLUMNS: Final = [
    output.text("partition"),
    *map(output.number, _SHOWN),
    output.text("reason"),
    output.text("stopped"),
]


@dataclass(frozen=True, slots=True)
class CompactCommand:
    """One call of the command."""

    surroundings: Surroundings
    data: str | None
    target: str | None
    kind: Format

    def run(self, *, roll: bool, if_due: bool) -> ExitCode:
        """Clean here, or let the holder of the directory do it."""
        try:
            done = self._here(roll=roll, if_due=if_due)
        except DirectoryLocked:
            holder = self._holder()
            if holder is None:
                raise
            with holder:
                done = self._by(holder, roll=roll, if_due=if_due)
        rows = [_row(one) for one in done]
        output.print_rows(self.surroundings, _COLUMNS, rows, self.kind)
        if not rows:
            self.surroundings.say("no topic has cleanup.policy=compact")
        is_whole = all(one.stopped is None for one in done)
        return ExitCode.OK if is_whole else ExitCode.FINDINGS

    def show(self) -> ExitCode:
        """Say what would be done; needs no lock, and changes nothing."""
        with open_directory(self.surroundings, self.data) as directory:
            return show_plan(self.surroundings, directory, self._names(directory), self.kind)

    def _here(self, *, roll: bool, if_due: bool) -> list[Compacted]:
        with open_directory(self.surroundings, self.data, writable=True) as directory:
            return [
                self._clean(directory, name, roll=roll, if_due=if_due)
                for name in self._names(directory)
            ]

    def _clean(
        self, directory: Directory, name: TopicPartition, *, roll: bool, if_due: bool
    ) -> Compacted:
        log = directory.log_dir.log(name.topic, name.partition)
        if roll:
            log.roll(RollReason.REQUEST)
        log.flush()  # what may still be lost keeps what it follows from going
        options = CleanerOptions(is_asked=not if_due)
        if log.tier is not None:
            from tidelog.storage.tiering import compact_tier

            return compacted(compact_tier(directory.log_dir, name, options))
        worker = InProcess(self.surroundings.env)
        return compacted(clean_partition(directory.log_dir, name, worker, options))

    def _names(self, directory: Directory) -> list[TopicPartition]:
        """The partitions of the target, or of all compacted topics; raises InvalidRequest."""
        if self.target is None:
            topics = [info for info in directory.topics().values() if info.config.is_compacted]
            return [TopicPartition(info.name, n) for info in topics for n in info.present]
        topic, number = parse_target(self.target)
        if not directory.topic(topic).config.is_compacted:
            words = f"config {topic}{Place(data=self.data).words}"
            raise InvalidRequest(
                f"{topic} is not compacted: `tidelog {words} --set cleanup.policy=compact` makes it"
                " so"
            )
        return partitions_of(directory, topic, number)

    def _holder(self) -> "ControlClient | None":
        """The broker that has the directory, where it compacts on request."""
        from tidelog.control.client import find_holder

        holder = find_holder(self.data or "")
        if holder is not None and "compact" not in cast("list[str]", holder.status()["verbs"]):
            holder.close()
            return None
        return holder

    def _by(self, holder: "ControlClient", *, roll: bool, if_due: bool) -> list[Compacted]:
        with open_directory(self.surroundings, self.data) as directory:
            names = self._names(directory)
        wanted = [(name, wishes(name, roll=roll, is_asked=not if_due)) for name in names]
        return [read_report(name, holder.ask("compact", told)) for name, told in wanted]


def _row(one: Compacted) -> list[Cell]:
    counts: list[Cell] = [one.counts[name] for name in _SHOWN]
    return [str(one.name), *counts, one.reason, one.stopped or ""]
