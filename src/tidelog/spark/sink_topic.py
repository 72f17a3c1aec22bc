"""The topic that a write makes where it is missing (`createPartitions`), on the driver."""

from typing import TYPE_CHECKING

from tidelog.errors import DirectoryLocked, TopicExists, UnknownTopic
from tidelog.storage.topics import NewTopic, check_new

if TYPE_CHECKING:
    from tidelog.spark.sink_options import SinkOptions


def make_missing_topic(options: "SinkOptions") -> None:
    """Make the topic of a write if the options say so and it is missing.

    Raises:
        InvalidTopic, InvalidPartitions, ConfigError: It can't be made so; nothing was changed.
        InvalidRequest: There is no such directory.
        DirectoryLocked: Another process has the directory open for writing: only that one can
            make topics.
        NotAuthorized, ClusterFailure: The brokers refuse, or can't be reached.
    """
    topic, partitions = options.topic, options.create
    if topic is None or partitions is None:
        return
    check_new(NewTopic(topic, partitions, options.create_config))
    if options.bootstrap:
        _make_at_brokers(options, topic, partitions)
    else:
        _make_in_directory(options, topic, partitions)


def _make_in_directory(options: "SinkOptions", topic: str, partitions: int) -> None:
    from tidelog.storage.log_dir import LogDir, LogDirOptions

    env = options.env()
    with LogDir.open(options.path, env=env) as log_dir:
        if topic in log_dir.topics():
            return
    try:
        writable = LogDirOptions(writable=True)
        with LogDir.open(options.path, env=env, options=writable) as log_dir:
            if topic not in log_dir.topics():
                log_dir.create_topic(topic, partitions=partitions, config=options.create_config)
    except DirectoryLocked as error:
        error.add_note(f"topic {topic} is missing: the process that has the lock has to make it")
        raise


def _make_at_brokers(options: "SinkOptions", topic: str, partitions: int) -> None:
    from tidelog.cluster.connection import connect
    from tidelog.cluster.topics import create
    from tidelog.spark.broker_markers import partition_count
    from tidelog.spark.broker_task import client_settings

    with connect(options.bootstrap, client_settings(options.client)) as cluster:
        try:
            partition_count(cluster, topic)
        except UnknownTopic:
            try:
                create(cluster, topic, partitions=partitions, config=options.create_config)
            except TopicExists:
                return  # another write was faster
