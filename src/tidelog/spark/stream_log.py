"""What a stream sees of its log at one moment, through a backend.

A batch names topics that must be there. A stream lives on when one of them is deleted, and finds
those that come later, so here all names are looked for in what there is.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from tidelog.errors import UnknownTopic
from tidelog.spark.source_options import SourceOptions
from tidelog.spark.stream_loss import Extent, Seen
from tidelog.spark.stream_offset import StreamOffset
from tidelog.spark.tasks import Backend
from tidelog.types import TopicPartition

# A topic may be deleted between two questions, but hardly again and again.
_TRIES: Final = 5


def tolerant(options: SourceOptions) -> SourceOptions:
    """The same partitions, as far as they are there: all topics by pattern."""
    if options.pattern is not None:
        return options
    names = options.topics or sorted({name.topic for name in options.assigned})
    pattern = "|".join(map(re.escape, names))
    return dataclasses.replace(options, topics=(), assigned=(), pattern=pattern)


class StreamLog:
    """A log that a stream reads. One owner; on the driver."""

    def __init__(
        self,
        options: SourceOptions,
        columns: Sequence[str],
        open_backend: Callable[[SourceOptions, Sequence[str]], Backend],
    ) -> None:
        """Connect.

        Args:
            options: What is read, and how.
            columns: Of a row.
            open_backend: Opens a backend for them.
        """
        self._options = options
        self._columns = columns
        self._open = open_backend
        self.backend = open_backend(tolerant(options), columns)

    def check_names(self) -> None:
        """Raise UnknownTopic where a topic or partition that was named does not exist."""
        if self._options.pattern is None:
            with self._open(self._options, self._columns) as strict:
                strict.bounds(strict.partitions())

    def look(self) -> Seen:
        """The partitions there are, and what they hold."""
        for _ in range(_TRIES - 1):
            try:
                return self._look()
            except UnknownTopic:
                continue
        return self._look()

    def _look(self) -> Seen:
        names = self.backend.partitions()
        if assigned := set(self._options.assigned):
            names = [name for name in names if name in assigned]
        bounds = self.backend.bounds(names)
        # Asked after the bounds: a topic that was created anew in between is then taken for lost,
        # which is found out again at the next look; the other way round nothing would be found.
        ids = self.backend.topic_ids({name.topic for name in names})
        extents = {name: Extent(*bounds[name]) for name in names}
        return Seen(extents=extents, topic_ids=ids)

    def cut_by_bytes(
        self, ranges: Mapping[TopicPartition, tuple[int, int]], max_bytes: int
    ) -> dict[TopicPartition, int]:
        """Where ranges of a directory end if all are to take about so many bytes."""
        from tidelog.spark.directory_backend import source_env
        from tidelog.spark.stream_bytes import cut_by_bytes
        from tidelog.storage.log_dir import LogDir

        with LogDir.open(self._options.path, env=source_env(self._options)) as log_dir:
            return cut_by_bytes(log_dir, ranges, max_bytes)

    def commit(self, group: str, offset: StreamOffset) -> None:
        """Tell a group of the brokers how far the query is; a failure is a warning."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of files and connections."""
        self.backend.close()


def freeze(now: Seen, then: Seen) -> Seen:
    """What there is `now` of what there was `then`: no later records, partitions or topics.

    Topic ids are those of now, so that topics that were deleted since then are found out.
    """
    extents = {}
    for name, (start, end) in now.extents.items():
        old = then.extents.get(name)
        if old is None or _is_other(name, now.topic_ids, then.topic_ids):
            continue
        extents[name] = Extent(start, max(min(end, old.end), start))
    return Seen(extents=extents, topic_ids=now.topic_ids)


def _is_other(name: TopicPartition, now: Mapping[str, str], then: Mapping[str, str]) -> bool:
    """Whether the topic is another one of the same name."""
    ids = now.get(name.topic, ""), then.get(name.topic, "")
    return all(ids) and ids[0] != ids[1]
