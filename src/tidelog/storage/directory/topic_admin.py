"""The part of an open directory that deletes topics.

Topics of one call are deleted by one write of the registry: it says that they are gone, and that
directories of their names count for nothing, until these are renamed, durably. So a crash leaves
each of them whole or gone, whatever it has done to the renames; the next opening removes what has
kept its name. What a renamed directory holds goes afterwards.

Source: Kafka 4.x LogManager (a deleted partition's directory is renamed first; the checkpoints
forget it).
"""

import uuid
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

from tidelog.errors import StorageFailure
from tidelog.storage import files
from tidelog.storage.directory.dir_state import DELETED_DIR_SUFFIX, DirectoryState
from tidelog.storage.directory.topic_registry import TopicInfo
from tidelog.storage.log.log import Log
from tidelog.storage.open_files import as_storage_failure
from tidelog.storage.tier.tier_record import note_partitions
from tidelog.types import TopicPartition

__all__ = ["TopicDeletion"]


class TopicDeletion(DirectoryState):
    """Deletes topics; the rest of what can be asked is in `log_dir.LogDir`."""

    def delete_topic(self, name: str) -> None:
        """Delete a topic and all its records; see `delete_topics`.

        Raises:
            UnknownTopic, ReadOnly, StorageFailure: As their names say.
        """
        self.delete_topics([name])

    def delete_topics(self, names: Sequence[str]) -> None:
        """Delete topics and all their records, with one write of the registry.

        Where power is lost meanwhile, each of them is whole or gone.

        Raises:
            UnknownTopic: One of them is not there; nothing was deleted.
            ReadOnly: The directory was opened for reading.
            StorageFailure: Nothing was deleted; or all of them are, and what is left of them is
                removed by the next opening.
        """
        left = self.hide_topics(names)()
        self.remove_set_aside(left)
        self._ensure_free(names)

    def hide_topics(self, names: Sequence[str]) -> Callable[[], list[str]]:
        """The part of `delete_topics` that takes no time: nobody finds these topics any more.

        Their logs are given up. No topic may be changed before what this returns has returned.

        Returns:
            What deletes them, for any thread, once: directories that are left come back, for
            `remove_set_aside`. Where it raises StorageFailure all of them are there again.

        Raises:
            UnknownTopic, ReadOnly: As their names say; nothing was hidden.
        """
        self._ensure_writable()
        hidden = self._registry.hide(names)
        gone = {info.name for info in hidden}
        logs = {each: log for each, log in self._logs.items() if each.topic in gone}
        for each, log in logs.items():
            del self._logs[each]
            self._given_up[each] = log.recovery_point
        let_go = [log.give_up() for log in logs.values()]
        begun = [each for each in self._openings.names() if each.topic in gone]
        let_go += [_left(self._openings.leave(each)) for each in begun]

        def delete() -> list[str]:
            try:
                for end in let_go:  # else it might make a file or a directory behind us
                    end()
                partitions = self._delete_hidden(hidden)
            except BaseException as error:
                with self._topic_change:
                    self._registry.show_again(hidden)
                if isinstance(error, OSError):
                    raise as_storage_failure(error, self.path, "delete topics") from error
                raise
            return self._set_deleted_aside(gone, partitions)

        return delete

    def _delete_hidden(self, hidden: Collection[TopicInfo]) -> list[TopicPartition]:
        """Delete hidden topics; the partitions that have a directory. Raises OSError: none is."""
        partitions = self._present({info.name for info in hidden})
        names = map(files.partition_dir_name, partitions)
        note_partitions(self.env.files, self.path, names, self.report)
        with self._topic_change:
            self._registry.delete_hidden(hidden)
        return partitions

    def _set_deleted_aside(
        self, topics: Collection[str], partitions: Iterable[TopicPartition]
    ) -> list[str]:
        """Rename directories of deleted topics, and forget what checkpoints say of these.

        What the disk refuses is reported, and counts for nothing: a topic of that name, or the
        next opening, tries again.
        """
        renamed: list[str] = []
        try:
            self._set_aside(partitions, renamed)
            for name in [each for each in tuple(self._given_up) if each.topic in topics]:
                self._given_up.pop(name, None)
            self._checkpoints.forget(topics)
            self.env.files.sync_dir(self.path)
        except OSError as error:
            failure = as_storage_failure(error, self.path, "set deleted topics aside")
            self.report(f"{failure}; the names of deleted topics stay in use")
            return renamed
        with self._topic_change:
            self._registry.forget_deleted(topics)
        return renamed

    def _set_aside(self, partitions: Iterable[TopicPartition], renamed: list[str]) -> None:
        for partition in partitions:
            path = f"{self.path}/{files.partition_dir_name(partition)}"
            own = uuid.UUID(int=self.env.random.getrandbits(128)).hex
            target = f"{path}.{own}{DELETED_DIR_SUFFIX}"
            self.env.files.rename(path, target)
            renamed.append(target)
            self._dirs.forget(partition)

    def _present(self, topics: Collection[str]) -> list[TopicPartition]:
        """The partitions of topics that have a directory now."""
        parsed = (files.parse_partition_dir(e.name) for e in self.env.files.list_dir(self.path))
        return sorted(p for p in parsed if p is not None and p.topic in topics)

    def _clear_names(self, names: Iterable[str]) -> None:
        """Set aside what deleted topics of these names have left; raises StorageFailure."""
        stuck = set(names).intersection(self._registry.deleted)
        if not stuck:
            return
        for path in self._set_deleted_aside(stuck, self._present(stuck)):
            with suppress(StorageFailure):
                self.remove_set_aside([path])
        self._ensure_free(stuck)

    def _ensure_free(self, names: Collection[str]) -> None:
        stuck = sorted(self._registry.deleted & set(names))
        if stuck:
            what = f"{', '.join(stuck)}: deleted, but directories can't be moved out of the way"
            raise StorageFailure(self.path, "free names", what)

    def remove_set_aside(self, paths: Iterable[str]) -> None:
        """The rest of `delete_topics`, which takes its time, for any thread; errors as there."""
        try:
            for path in paths:
                self._remove_tree(path)
        except OSError as error:
            raise as_storage_failure(error, self.path, "remove deleted topics") from error


def _left(opened: Callable[[], Log | None]) -> Callable[[], None]:
    """What gives up a log that nobody has taken in, once it is open."""

    def end() -> None:
        log = opened()
        if log is not None:
            log.abandon()

    return end
