"""A cluster of brokers, asked through confluent-kafka: topics, offsets, single records.

Nothing waits longer than its time-out, and whatever the client library reports becomes a
ClusterFailure that names the cluster, what was tried and what the broker said.

Life cycle: connect -> calls -> close, best by `with`. For one thread.
"""

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self, TypeAlias, TypeVar

from tidelog.cluster import codes, groups, offsets, remote
from tidelog.cluster.view import Committed, Group, RemoteRecord, Watermarks
from tidelog.env import Clock, SystemClock
from tidelog.errors import ClusterFailure, ConfigError, MissingDependency, UnknownTopic
from tidelog.types import IsolationLevel, OffsetAndTimestamp, TopicPartition

if TYPE_CHECKING:
    import confluent_kafka as ck
    from confluent_kafka.admin import AdminClient

Setting: TypeAlias = str | int | float | bool
_Key = TypeVar("_Key")
_Answer = TypeVar("_Answer")

TIMEOUT_S: Final = 15.0
# A future is waited for a little longer than its request, whose own error says more.
_GRACE_S: Final = 2.0
# librdkafka needs a group's name even where no group is used; nothing is ever committed under it.
_NO_GROUP: Final = "tidelog"


def require_client() -> None:
    """Raise MissingDependency where confluent-kafka is not installed."""
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        raise MissingDependency(
            "brokers are reached by confluent-kafka; `pip install 'tidelog[kafka]'`"
        ) from error


def connect(
    bootstrap: str,
    config: Mapping[str, str] | None = None,
    *,
    timeout_s: float = TIMEOUT_S,
    clock: Clock | None = None,
) -> "Cluster":
    """A cluster to ask; the first question connects.

    Args:
        bootstrap: `host:port[,host:port]`.
        config: librdkafka's settings, e.g. from `properties.client_settings`.
        timeout_s: For each request, in seconds.
        clock: For deadlines; the machine's where None.

    Raises:
        MissingDependency: confluent-kafka is not installed.
        ConfigError: The client library knows no such setting or value.
    """
    require_client()
    return Cluster(bootstrap, config or {}, timeout_s=timeout_s, clock=clock or SystemClock())


class Cluster:
    """One cluster; a `ClusterView`."""

    def __init__(
        self, bootstrap: str, config: Mapping[str, str], *, timeout_s: float, clock: Clock
    ) -> None:
        self.bootstrap = bootstrap
        self.timeout_s = timeout_s
        self._config = dict(config)
        self._clock = clock
        self._admin: AdminClient | None = None
        self._readers: dict[IsolationLevel, ck.Consumer] = {}
        self._last_words = ""

    # -- the client library ------------------------------------------------------------------

    def admin(self) -> "AdminClient":
        """The one admin client of this connection."""
        if self._admin is None:
            from confluent_kafka.admin import AdminClient

            with self._typed_config():
                self._admin = AdminClient(self._settings(), error_cb=self._listen)
        return self._admin

    def consumer(self, group: str | None = None, **more: Setting) -> "ck.Consumer":
        """A new consumer, which its owner closes.

        Args:
            group: Its group; without one it can be assigned partitions, and commits nothing.
            more: Settings, with underscores for dots. Partition ends are told, nothing is
                committed unasked, and an offset outside the log is an error.
        """
        from confluent_kafka import Consumer

        settings: dict[str, Setting] = {
            "group.id": group or _NO_GROUP,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        settings |= {key.replace("_", "."): value for key, value in more.items()}
        with self._typed_config():
            return Consumer(self._settings() | settings, error_cb=self._listen)

    def _settings(self) -> dict[str, Setting]:
        quiet: dict[str, Setting] = {
            "log_level": 0,
            "socket.timeout.ms": max(int(self.timeout_s * 1000), 1000),
            "client.id": "tidelog",
        }
        return quiet | self._config | {"bootstrap.servers": self.bootstrap}

    def _listen(self, error: "ck.KafkaError") -> None:
        """Keep what the library says aside: its time-outs alone don't tell what is wrong."""
        if error.code() != codes.ALL_BROKERS_DOWN:
            self._last_words = error.str()

    @contextmanager
    def _typed_config(self) -> Iterator[None]:
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            reason = error.args[0].str()
            raise ConfigError("client settings", None, reason) from error

    @contextmanager
    def typed(self, operation: str) -> Iterator[None]:
        """Turn what the client library raises into ClusterFailure; `operation` as a verb."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            raise self.failure(operation, error.args[0]) from error
        except FutureTimeout as error:
            reason = f"no answer within {self.timeout_s:g} s{self._heard()}"
            raise ClusterFailure(self.bootstrap, operation, reason) from error

    def failure(self, operation: str, error: "ck.KafkaError") -> ClusterFailure:
        """The error to raise for one of the client library's."""
        waited = error.code() in (codes.TIMED_OUT, codes.TRANSPORT)
        heard = self._heard() if waited else ""
        reason = f"{error.name()}: {error.str()}{heard}"
        return ClusterFailure(self.bootstrap, operation, reason, error_code=error.code())

    def _heard(self) -> str:
        return f" ({self._last_words})" if self._last_words else ""

    def results(
        self, operation: str, futures: "Mapping[_Key, Future[_Answer]]"
    ) -> dict[_Key, _Answer]:
        """What all futures bring; raises ClusterFailure for the first that fails."""
        with self.typed(operation):
            return {
                key: future.result(timeout=self.timeout_s + _GRACE_S)
                for key, future in futures.items()
            }

    # -- topics ------------------------------------------------------------------------------

    def topics(self) -> dict[str, int]:
        """All topics with their numbers of partitions."""
        with self.typed("list topics"):
            found = self.admin().list_topics(timeout=self.timeout_s)
        return {name: len(topic.partitions) for name, topic in found.topics.items()}

    def partitions(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic; raises UnknownTopic, which names the nearest one."""
        topics = self.topics()
        if not topics.get(topic):
            near = difflib.get_close_matches(topic, topics, n=1)
            hint = f"; is it {near[0]}?" if near else ""
            raise UnknownTopic(f"{self.bootstrap} has no topic {topic}{hint}")
        return [TopicPartition(topic, number) for number in range(topics[topic])]

    def topic_settings(self, topic: str) -> dict[str, str]:
        """A topic's settings in force, under Kafka's names."""
        return offsets.topic_settings(self, topic)

    # -- offsets -----------------------------------------------------------------------------

    def watermarks(
        self,
        partitions: Iterable[TopicPartition],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, Watermarks]:
        """Log start, and high watermark or (READ_COMMITTED) last stable offset."""
        return offsets.watermarks(self, list(partitions), isolation)

    def offsets_for_times(
        self,
        times: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record whose timestamp is the time in ms or later, None where there is none."""
        found = offsets.lookup(self, times, isolation)
        return {p: answer if answer.offset >= 0 else None for p, answer in found.items()}

    # -- groups ------------------------------------------------------------------------------

    def group(self, name: str) -> Group:
        """A consumer group; raises UnknownGroup."""
        return groups.describe(self, name)

    def committed(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, Committed | None]:
        """What a group committed, of all its partitions where None; None for no commit."""
        return groups.committed(self, group, partitions)

    def commit(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Commit for a group without members; raises GroupActive where it has some."""
        groups.commit(self, group, offsets)

    # -- records -----------------------------------------------------------------------------

    def fetch(self, partition: TopicPartition, offset: int) -> RemoteRecord | None:
        """The first data record at or behind an offset, None where the log ends before one."""
        return self.first_records({partition: offset})[partition]

    def first_records(
        self,
        offsets: Mapping[TopicPartition, int],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, RemoteRecord | None]:
        """The first data record at or behind each offset, None where the log ends before one."""
        return remote.first_records(self, self._reader(isolation), offsets)

    def records(
        self,
        partition: TopicPartition,
        start: int,
        end: int,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> Iterator[RemoteRecord]:
        """The data records with offsets in [start, end), in order."""
        return remote.records(self, self._reader(isolation), partition, start, end)

    def deadline(self) -> Callable[[], float]:
        """A function that says how many seconds of one request's time-out are left."""
        end_ms = self._clock.monotonic_ms() + int(self.timeout_s * 1000)
        return lambda: max((end_ms - self._clock.monotonic_ms()) / 1000, 0.0)

    def _reader(self, isolation: IsolationLevel) -> "ck.Consumer":
        found = self._readers.get(isolation)
        if found is None:
            found = self.consumer(isolation_level=isolation.name.lower(), fetch_wait_max_ms=100)
            self._readers[isolation] = found
        return found

    # -- closing -----------------------------------------------------------------------------

    def close(self) -> None:
        """Close what was opened; a closed connection opens again at its next question."""
        readers, self._readers, self._admin = self._readers, {}, None
        for reader in readers.values():
            reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
