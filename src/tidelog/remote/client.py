"""confluent-kafka behind a small interface: admin client, consumers, producers, errors, deadlines.

No call waits longer than its time-out. Errors of the library and of brokers become ClusterFailure
or its subclasses, with the cluster, the operation, topic and partition. librdkafka's own error
codes are negative.

Source: Kafka's protocol guide, error codes; librdkafka, rdkafka.h, rd_kafka_resp_err_t.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from tidelog.env import Clock
from tidelog.error_codes import ErrorCode
from tidelog.errors import (
    Closed,
    ClusterFailure,
    ConfigError,
    InvalidRecord,
    InvalidRequest,
    InvalidTimestamp,
    MessageTooLarge,
    NotAuthorized,
    PolicyViolation,
    RecordListTooLarge,
    TidelogError,
    UnknownTopic,
    WriterFenced,
)
from tidelog.types import (
    PORT_MAX,
    TopicPartition,
)

if TYPE_CHECKING:
    import confluent_kafka as ck
    from confluent_kafka.admin import AdminClient


TIMEOUT_MAX_S: Final = 3600.0  # the client library waits no longer for an admin's request


_TIMEOUT_MIN_S: Final = 0.001


# Settings that say nothing of how records are fetched: with these alone brokers are asked directly.
_NOT_OF_FETCHES: Final = frozenset(
    {
        "acks",
        "batch.num.messages",
        "batch.size",
        "client.id",
        "compression.level",
        "compression.type",
        "delivery.timeout.ms",
        "enable.idempotence",
        "linger.ms",
        "message.max.bytes",
        "message.timeout.ms",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "request.required.acks",
        "security.protocol",
    }
)


def check_bootstrap(bootstrap: object) -> None:
    """Do nothing if it is `host:port[,host:port]`.

    The client library takes port 0 for one that is no number, cuts one that is too large to 16
    bits, and waits for brokers where there are none.

    Raises:
        ConfigError: It is not; names the server that is wrong.
    """
    if not isinstance(bootstrap, str) or not bootstrap.strip():
        allowed = "write HOST:PORT, several with commas between"
        raise ConfigError("bootstrap", repr(bootstrap), allowed)
    for server in bootstrap.split(","):
        _check_server(server.strip())


def _check_server(server: str) -> None:
    host, _, port = server.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 1 <= int(port) <= PORT_MAX
    if not host or not is_port:
        allowed = f"write HOST:PORT, with a port from 1 to {PORT_MAX}"
        raise ConfigError("bootstrap", repr(server), allowed)


def check_timeout(timeout_s: float) -> None:
    """Do nothing if it is a number of seconds that can be waited for.

    Raises:
        ConfigError: It is not.
    """
    if not _TIMEOUT_MIN_S <= timeout_s <= TIMEOUT_MAX_S:
        allowed = f"a request may take from a millisecond to {TIMEOUT_MAX_S:g} seconds"
        raise ConfigError("timeout", f"{timeout_s} s", allowed)


def is_direct(client: Mapping[str, str]) -> bool:
    """Whether batches can be fetched from leaders, without librdkafka: plain text alone.

    Args:
        client: Settings of librdkafka.
    """
    protocol = client.get("security.protocol", "PLAINTEXT")
    return protocol.upper() == "PLAINTEXT" and client.keys() <= _NOT_OF_FETCHES


TRANSPORT: Final = -195


PARTITION_EOF: Final = -191


ALL_BROKERS_DOWN: Final = -187


TIMED_OUT: Final = -185


# No partition that was asked about has a leader.
NO_LEADERS: Final = -156


AUTO_OFFSET_RESET: Final = -140


_NAMES: Final[dict[int, str]] = {
    **{code: name for name, code in globals().items() if isinstance(code, int)},
    **{code: code.name for code in ErrorCode},
}


def named(code: int) -> str:
    """Return an error code with the protocol's name for it, `KAFKA_STORAGE_ERROR (error 56)`."""
    name = _NAMES.get(code)
    return f"error {code}" if name is None else f"{name} (error {code})"


# Who leads a partition has changed, or is about to: ask who it is now.
LEADER_CHANGES: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)


# A partition's leader is about to be there, as after a topic's creation or a broker's end.
LEADER_COMES: Final = frozenset(
    {
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)


# What brokers answer to a commit from outside a group that has members.
OVERRULED: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)


# A group's coordinator is about to be there, as after a broker's start; nothing was done yet.
COORDINATOR_COMES: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)


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
        from tidelog.remote.ordered_consumer import OrderedConsumer

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
        if error.code() != ALL_BROKERS_DOWN:
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
        waited = error.code() in (TIMED_OUT, TRANSPORT)
        last_error = self._heard() if waited else ""
        reason = f"{error.name()}: {error.str()}{last_error}"
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

        leaders: dict[TopicPartition, str] = {}
        try:
            for topic in sorted(topics):
                metadata = self.admin().list_topics(topic, timeout=self.timeout_s)
                for number, part in metadata.topics[topic].partitions.items():
                    broker = metadata.brokers.get(part.leader)
                    address = "" if broker is None else f" at {broker.host}:{broker.port}"
                    is_led = part.leader != _NO_LEADER
                    text = f"leader {part.leader}{address}" if is_led else "no leader"
                    leaders[TopicPartition(topic, number)] = text
        except (KafkaException, KeyError):
            return leaders
        return leaders

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


# The id of all zeros, which older brokers answer.
_NO_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"


def id_text(topic_id: object) -> str | None:
    """Return an id of the client library as Kafka prints it; None where it stands for no id."""
    if topic_id is None or str(topic_id) == _NO_TOPIC_ID:
        return None
    # librdkafka writes it in base64's usual alphabet, Kafka in the one for addresses.
    return str(topic_id).replace("+", "-").replace("/", "_")


UNKNOWN_PARTITION: Final = -190


UNKNOWN_TOPIC: Final = -188


FENCED: Final = -144


PURGED: Final = frozenset({-152, -151})


_FENCED: Final = frozenset({FENCED, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})


_NOT_AUTHORIZED: Final = frozenset(
    {
        -169,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.GROUP_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED,
    }
)


_REFUSED: Final[dict[int, type[TidelogError]]] = {
    ErrorCode.MESSAGE_TOO_LARGE: MessageTooLarge,
    ErrorCode.RECORD_LIST_TOO_LARGE: RecordListTooLarge,
    ErrorCode.INVALID_TIMESTAMP: InvalidTimestamp,
    ErrorCode.POLICY_VIOLATION: PolicyViolation,
    ErrorCode.INVALID_RECORD: InvalidRecord,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UnknownTopic,
    UNKNOWN_TOPIC: UnknownTopic,
    UNKNOWN_PARTITION: InvalidRequest,
}


# What to do about it, where the broker's own words don't say.
_ADVICE: Final[dict[int, str]] = {
    ErrorCode.MESSAGE_TOO_LARGE: "; raise the topic's max.message.bytes, and for a single large"
    " record the producer's message.max.bytes (in Spark the option kafka.max.request.size)",
    ErrorCode.INVALID_TIMESTAMP: "; the topic's message.timestamp.before.max.ms and"
    " message.timestamp.after.max.ms say which times it takes",
    ErrorCode.POLICY_VIOLATION: "; a tidelog broker refuses so while its clock can't be believed:"
    " its log says why, and `tidelog accept-clock --data DIR` on its machine lets appends go on",
    ErrorCode.INVALID_RECORD: "; a compacted topic takes no record without a key",
    ErrorCode.PRODUCER_FENCED: "; another attempt of the same writer writes in its place",
}


def typed_error(
    client: Client, operation: str, error: "ck.KafkaError", *, where: str = ""
) -> TidelogError:
    """The error to raise for one of the client library's.

    Args:
        client: The cluster it is about.
        operation: What was tried, as a verb.
        error: What the library said.
        where: Topic and partition, empty where it is about no single one.
    """
    code = error.code()
    prefix = f"{where}: " if where else ""
    reason = f"{prefix}{error.name()}: {error.str()}{_ADVICE.get(code, '')}"
    if code in _REFUSED:
        return _REFUSED[code](reason)
    if code in _FENCED:
        return WriterFenced(client.bootstrap, operation, reason, error_code=code)
    if code in _NOT_AUTHORIZED:
        return NotAuthorized(client.bootstrap, operation, reason, error_code=code)
    failure = client.failure(operation, error)
    return ClusterFailure(client.bootstrap, operation, prefix + failure.reason, error_code=code)
