"""The client library, held at arm's length: one admin client, consumers, errors, deadlines.

Nothing waits longer than its time-out, and whatever the library reports becomes a ClusterFailure
that names the cluster, what was tried and what the broker said.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from tidelog.cluster import codes
from tidelog.cluster.access_checks import check_bootstrap, check_timeout
from tidelog.env import Clock
from tidelog.errors import Closed, ClusterFailure, ConfigError
from tidelog.types import TopicPartition

if TYPE_CHECKING:
    import confluent_kafka as ck
    from confluent_kafka.admin import AdminClient

Setting: TypeAlias = str | int | float | bool
_Key = TypeVar("_Key")
_Answer = TypeVar("_Answer")

# A future is waited for a little longer than its request, whose own error says more.
_GRACE_S: Final = 2.0
# The client library's own limit; requests that may take longer say so themselves.
_SOCKET_TIMEOUT_MAX_MS: Final = 300_000
# Between two questions to a cluster that is not ready to answer.
_PAUSE_S: Final = 0.1
# librdkafka needs a group's name even where no group is used; nothing is ever committed under it.
_NO_GROUP: Final = "tidelog"
# Partitions that an error names one by one; the others are counted.
_NAMED_MAX: Final = 5
_NO_LEADER: Final = -1


class Client:
    """Clients and time-outs for requests to one cluster. For one thread."""

    def __init__(
        self, bootstrap: str, config: Mapping[str, str], *, timeout_s: float, clock: Clock
    ) -> None:
        """Nothing is asked yet.

        Args:
            bootstrap: `host:port[,host:port]`.
            config: librdkafka's settings.
            timeout_s: For each request, in seconds.
            clock: For deadlines.

        Raises:
            ConfigError: There can't be such a server, or such a time-out.
        """
        check_bootstrap(bootstrap)
        check_timeout(timeout_s)
        self.bootstrap = bootstrap
        self.timeout_s = timeout_s
        self._config = dict(config)
        self._clock = clock
        self._admin: AdminClient | None = None
        self._last_words = ""
        self._is_closed = False

    def ensure_open(self) -> None:
        """Raise Closed where the connection was closed for good."""
        if self._is_closed:
            raise Closed(f"the connection to {self.bootstrap} is closed")

    # -- the client library ------------------------------------------------------------------

    def admin(self) -> "AdminClient":
        """The one admin client of this connection; raises Closed where that is closed."""
        self.ensure_open()
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
                committed unasked, and an offset outside the log is an error. Records whose offsets
                don't rise raise CorruptBatch.

        Raises:
            Closed: The connection was closed for good.
        """
        from tidelog.cluster.ordered_consumer import OrderedConsumer

        self.ensure_open()
        settings: dict[str, Setting] = {
            "group.id": group or _NO_GROUP,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        settings |= {key.replace("_", "."): value for key, value in more.items()}
        with self._typed_config():
            return OrderedConsumer(
                self.bootstrap, self._settings() | settings, error_cb=self._listen
            )

    def producer(self, settings: Mapping[str, object]) -> "ck.Producer":
        """A new producer, which its owner closes.

        Args:
            settings: librdkafka's; what was given for this cluster comes before them.

        Raises:
            ConfigError: The client library knows no such setting or value.
        """
        from confluent_kafka import Producer

        with self._typed_config():
            return Producer({**settings, **self._settings()}, error_cb=self._listen)

    @property
    def request_timeout_ms(self) -> int:
        """How long the client library waits for the response to a request."""
        return min(max(int(self.timeout_s * 1000), 1000), _SOCKET_TIMEOUT_MAX_MS)

    def _settings(self) -> dict[str, Setting]:
        quiet: dict[str, Setting] = {
            "log_level": 0,
            "socket.timeout.ms": self.request_timeout_ms,
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

    def unanswered(
        self, operation: str, partitions: Iterable[TopicPartition], reason: str
    ) -> ClusterFailure:
        """Return the error for partitions whose leaders did not answer in time.

        It names the partitions, with the address of each leader as far as other brokers know it.
        """
        names = sorted(partitions)
        leaders = self._leaders({name.topic for name in names})
        listed = ", ".join(
            f"{name} ({leaders.get(name, 'leader unknown')})" for name in names[:_NAMED_MAX]
        )
        more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
        return ClusterFailure(
            self.bootstrap,
            f"{operation} of {listed}{more}",
            f"{reason}{self._heard()}",
        )

    def _leaders(self, topics: Iterable[str]) -> dict[TopicPartition, str]:
        """Return each partition's leader as text; empty where no broker can be asked."""
        from confluent_kafka import KafkaException

        found: dict[TopicPartition, str] = {}
        try:
            for topic in sorted(topics):
                told = self.admin().list_topics(topic, timeout=self.timeout_s)
                for number, part in told.topics[topic].partitions.items():
                    broker = told.brokers.get(part.leader)
                    address = "" if broker is None else f" at {broker.host}:{broker.port}"
                    is_led = part.leader != _NO_LEADER
                    text = f"leader {part.leader}{address}" if is_led else "no leader"
                    found[TopicPartition(topic, number)] = text
        except (KafkaException, KeyError):
            return found
        return found

    def _heard(self) -> str:
        if self._admin is not None:
            self._admin.poll(0)  # what it has to say is told only to those who ask
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

    def answer(self, ask: Callable[[], _Answer], *, unready: Collection[int]) -> _Answer:
        """What `ask` brings, asked again within one time-out while it fails by an `unready` code.

        For questions alone, which may be asked twice.
        """
        left_s = self.deadline()
        while True:
            try:
                return ask()
            except ClusterFailure as error:
                if error.error_code not in unready or left_s() <= 0:
                    raise
            self.admin().poll(_PAUSE_S)

    def deadline(self, *, times: int = 1) -> Callable[[], float]:
        """A function that says how many seconds are left of one request's time-out, or several."""
        end_ms = self._clock.monotonic_ms() + int(self.timeout_s * 1000) * times
        return lambda: max((end_ms - self._clock.monotonic_ms()) / 1000, 0.0)
