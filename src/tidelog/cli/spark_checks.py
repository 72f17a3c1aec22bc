"""What commands on Spark look at before Spark starts, which takes 15 seconds and more.

A typing error, a topic that is not there, a directory that can't be written or a cluster that can't
be reached is told at once. The job checks the same again: much may change while Spark starts.
"""

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePath

from tidelog.cli.surroundings import Surroundings, UsageProblem
from tidelog.objects import env_for
from tidelog.spark.places import Place
from tidelog.storage.directory.topic_registry import unknown_topic
from tidelog.types import TopicPartition


@dataclass(frozen=True, slots=True)
class Use:
    """How a job uses a place.

    Attributes:
        place: The place.
        topics: Topics and partitions that must be there.
        writes: Whether the job writes there.
    """

    place: Place
    topics: tuple[str | TopicPartition, ...] = ()
    writes: bool = False


def check_before(surroundings: Surroundings, uses: Iterable[Use], *files: str | None) -> None:
    """Look at the places and files of a job.

    Args:
        surroundings: Files and clock.
        uses: The places.
        files: Files that the job writes at its end, None for none.

    Raises:
        InvalidRequest: There is no such directory.
        UnknownTopic: A topic or partition is not there.
        UsageProblem: A file to be written that is a directory.
        OSError: A directory can't be read or written; a file's folder is not there.
        ClusterFailure, NotAuthorized, MissingDependency: The cluster refuses, or can't be reached.
    """
    for file in files:
        if file is not None:
            _check_file(surroundings, file)
    for use in uses:
        there = topics_at(surroundings, use.place)
        for topic in use.topics:
            name, partition = topic, None
            if isinstance(topic, TopicPartition):
                name, partition = topic.topic, topic.partition
            if name not in there:
                raise unknown_topic(str(name), there)
            if partition is not None and partition >= there[str(name)]:
                count = there[str(name)]
                error = unknown_topic(f"{name}:{partition}", ())
                error.add_note(f"{name} has partitions 0 to {count - 1}")
                raise error
        if use.writes and not use.place.is_broker:
            _check_writable(use.place.address)


def topics_at(surroundings: Surroundings, place: Place) -> dict[str, int]:
    """The topics of a place, with their numbers of partitions; errors as `check_before`."""
    if place.is_broker:
        from tidelog.jobs.target_check import open_cluster

        with open_cluster(place) as cluster:
            return dict(cluster.topics())
    from tidelog.storage.directory.log_dir import LogDir

    env = env_for(place.address, surroundings.env, place.store)
    with LogDir.open(place.address, env=env) as log_dir:
        return {name: info.partitions for name, info in log_dir.topics().items()}


def _check_writable(path: str) -> None:
    if "://" not in path and not os.access(path, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


def _check_file(surroundings: Surroundings, path: str) -> None:
    files, folder = surroundings.env.files, str(PurePath(path).parent)
    if files.exists(path) and files.stat(path).is_dir:
        raise UsageProblem(f"{path}: a directory, no file to write to")
    if not files.exists(folder):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
    _check_writable(folder)
