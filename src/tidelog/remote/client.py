"""Small interface to confluent-kafka: admin client, consumers, producers, errors, deadlines.

Every call has a timeout. Errors of the library and of brokers are raised as subclasses of
TidelogError. Most of these errors are ClusterFailure, which names the cluster and the operation.
The error codes that librdkafka itself defines are negative.

Source: Kafka's protocol guide, error codes; librdkafka, rdkafka.h, rd_kafka_resp_err_t.
"""

import re
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


TIMEOUT_MAX_S: Final = 3600.0  # librdkafka's maximum timeout of an admin request
_TIMEOUT_MIN_S: Final = 0.001

# Settings that don't affect how records are fetched. (`security.protocol` is such a setting only if
# its value is PLAINTEXT.) If a client has no other settings, batches are fetched from the leaders
# without librdkafka.
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
    """Check that a text is `host:port[,host:port]`.

    The check is needed because librdkafka does not reject invalid text: librdkafka treats a port
    that is not a number as 0, keeps only the low 16 bits of a port that is too large, and waits for
    brokers even if no server is given.

    Raises:
        ConfigError: The text doesn't have this form. The message contains the invalid server.
    """
    if not isinstance(bootstrap, str) or not bootstrap.strip():
        allowed = "give HOST:PORT[,HOST:PORT...]"
        raise ConfigError("bootstrap", repr(bootstrap), allowed)
    for server in bootstrap.split(","):
        _check_server(server.strip())


def _check_server(server: str) -> None:
    if server.startswith("kafka://"):  # librdkafka would wait for brokers
        raise ConfigError("bootstrap", repr(server), "give HOST:PORT, without kafka://")
    host, _, port = server.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 1 <= int(port) <= PORT_MAX
    if not host or not is_port:
        allowed = f"give HOST:PORT, with a port from 1 to {PORT_MAX}"
        raise ConfigError("bootstrap", repr(server), allowed)


def check_timeout(timeout_s: float) -> None:
    """Check that a timeout is a number of seconds in the allowed range.

    Raises:
        ConfigError: The timeout is NaN, or outside the range.
    """
    if not _TIMEOUT_MIN_S <= timeout_s <= TIMEOUT_MAX_S:
        allowed = f"give a timeout from {_TIMEOUT_MIN_S:g} to {TIMEOUT_MAX_S:g} seconds"
        raise ConfigError("timeout", f"{timeout_s} s", allowed)


def is_direct(client: Mapping[str, str]) -> bool:
    """Return whether batches can be fetched from leaders without librdkafka.

    Fetches without librdkafka are possible if connections are plain text without SASL, and if no
    setting changes how records are fetched.

    Args:
        client: Settings of librdkafka.
    """
    protocol = client.get("security.protocol", "PLAINTEXT")
    return protocol.upper() == "PLAINTEXT" and client.keys() <= _NOT_OF_FETCHES


# Pattern of librdkafka's text for a refused connection; its only group matches HOST:PORT.
# librdkafka reports a refused connection only in this text, because the error that it raises is a
# timeout.
_REFUSED_CONNECTION: Final = re.compile(
    r"([^\s/(]+:\d+)/\S+: Connect to \S+ failed: Connection refused"
)


def unresolved_text(error: OSError, of: str = "") -> str:
    """Return the reason of a failed name lookup; `of` follows the words "host name"."""
    return f"can't resolve the host name{of} ({error.strerror})"


def refused_text(address: str, bootstrap: str) -> str:
    """Return the text for a server that refuses connections.

    The complete error begins with `bootstrap`, the addresses of all servers. So this text repeats
    the address only if there are several servers.
    """
    what = "connection refused" if address == bootstrap else f"{address} refuses connections"
    return f"{what}; check that a broker is running there"


TRANSPORT: Final = -195
PARTITION_EOF: Final = -191
ALL_BROKERS_DOWN: Final = -187
TIMED_OUT: Final = -185

# librdkafka's error code if none of the requested partitions has a leader.
NO_LEADERS: Final = -156

AUTO_OFFSET_RESET: Final = -140

_NAMES: Final[dict[int, str]] = {
    **{code: name for name, code in globals().items() if isinstance(code, int)},
    **{code: code.name for code in ErrorCode},
}


def named(code: int) -> str:
    """Return an error code with its name in the protocol: `KAFKA_STORAGE_ERROR (error 56)`."""
    name = _NAMES.get(code)
    return f"error {code}" if name is None else f"{name} (error {code})"


# Codes of errors after which the leader is looked up again, because it may have changed.
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

# Codes of temporary errors, which end when the partition's new leader is ready, for example after
# the topic was created or a broker was stopped.
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

# Error codes for a commit to a group with members, sent by a client that is not a member.
OVERRULED: Final = frozenset(
    {
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.NON_EMPTY_GROUP,
        ErrorCode.STALE_MEMBER_EPOCH,
    }
)

# Codes of temporary errors, which end when the group's coordinator is ready, for example after a
# broker was started. A request that fails with one of these codes has no effect.
COORDINATOR_COMES: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)

Setting: TypeAlias = str | int | float | bool
_Key = TypeVar("_Key")
_Result = TypeVar("_Result")

# Seconds to wait for a future in addition to the timeout of its request. So the request's own
# timeout error, which has more details, is raised instead of the future's.
_GRACE_S: Final = 2.0

# librdkafka's maximum of `socket.timeout.ms`. Requests that may take longer have their own timeout.
_SOCKET_TIMEOUT_MAX_MS: Final = 300_000

# Maximum size of a response in bytes. With librdkafka's default of 100,000,000, a record of almost
# this size could be written but never read, because a response is larger than its batches.
_RESPONSE_BYTES_MAX: Final = 1 << 27

# Pause in seconds between two requests to a cluster that is not ready.
_PAUSE_S: Final = 0.1

# librdkafka requires a group name even if no group is used; nothing is committed to this group.
_NO_GROUP: Final = "tidelog"

# Maximum number of partitions that an error lists. For further partitions the error gives only
# their number.
_NAMED_MAX: Final = 5

_NO_LEADER: Final = -1

# For one-shot commands: number of attempts to reach any bootstrap server, pause between two
# attempts, and timeout of connecting to one server. A broker that is just starting can open its
# port during the three pauses between the four attempts.
_ATTEMPTS: Final = 4
_ATTEMPT_PAUSE_S: Final = 0.25
_ATTEMPT_TIMEOUT_S: Final = 0.25


class Client:
    """Clients and timeouts for requests to one cluster. Not thread-safe."""

    def __init__(
        self, bootstrap: str, config: Mapping[str, str], *, timeout_s: float, clock: Clock
    ) -> None:
        """Create the clients of a cluster; sends no request.

        Args:
            bootstrap: `host:port[,host:port]`.
            config: librdkafka's settings.
            timeout_s: Timeout of each request, in seconds.
            clock: Clock for timeouts.

        Raises:
            ConfigError: `bootstrap` or `timeout_s` is invalid.
        """
        check_bootstrap(bootstrap)
        check_timeout(timeout_s)
        self.bootstrap = bootstrap
        self.timeout_s = timeout_s
        self._config = dict(config)
        self._clock = clock
        self._admin: AdminClient | None = None
        self._last_error = ""
        self._is_closed = False
        self._is_direct = is_direct(config)
        self._without_append_times: set[int] = set()
        self._pause: Callable[[float], object] | None = None

    @property
    def is_plain_text(self) -> bool:
        """Whether requests can be sent without librdkafka; see `is_direct`."""
        return is_direct(self._config)

    def ensure_open(self) -> None:
        """Raise Closed if `close_for_good` was called."""
        if self._is_closed:
            raise Closed(f"the connection to {self.bootstrap} is closed")

    def fail_if_refused(self, pause: Callable[[float], object]) -> None:
        """Let the first request fail within about a second if no server accepts connections.

        The first request fails early only if each bootstrap server refuses the connection or has a
        name that can't be resolved. If a server neither responds nor refuses, librdkafka tries to
        connect until the timeout. Without a call of this method, librdkafka tries until the timeout
        after every failure.

        Args:
            pause: Function that waits for a number of seconds, between two attempts.
        """
        self._pause = pause

    def _ensure_accepted(self) -> None:
        """Raise ClusterFailure if `fail_if_refused` was called and no server can be reached."""
        pause = self._pause
        if pause is None:
            return
        left_s = self.deadline()
        refusal = self._refusal()
        for _ in range(_ATTEMPTS - 1):
            if refusal is None or left_s() <= 0:  # a slow name server may use up the timeout
                break
            pause(min(_ATTEMPT_PAUSE_S, self.timeout_s / _ATTEMPTS))
            refusal = self._refusal()
        if refusal is not None:
            raise ClusterFailure(self.bootstrap, "connect", refusal)
        self._pause = None

    def _refusal(self) -> str | None:
        """Return why no bootstrap server can be reached; None if one might respond."""
        from socket import create_connection, gaierror

        timeout_s = min(_ATTEMPT_TIMEOUT_S, self.timeout_s)
        reasons = []
        for server in self.bootstrap.split(","):
            address = server.strip().rpartition("://")[2]  # may be PROTOCOL://HOST:PORT
            host, _, port = address.rpartition(":")
            try:
                place = host.strip("[]"), int(port)
                create_connection(place, timeout_s, all_errors=True).close()
            except ExceptionGroup as failures:  # one failure for each IP address of the host
                if failures.subgroup(TimeoutError) or not failures.subgroup(ConnectionRefusedError):
                    return None
                reasons.append(refused_text(address, self.bootstrap))
            except gaierror as error:
                of = "" if address == self.bootstrap else f" of {address}"
                reasons.append(unresolved_text(error, of))
            except ValueError:  # librdkafka accepts host names that Python does not encode
                return None
            else:
                return None
        return "; ".join(reasons)

    # -- the client library ------------------------------------------------------------------

    def admin(self) -> "AdminClient":
        """Return the only admin client, created by the first call.

        Raises:
            Closed: `close_for_good` was called.
            ConfigError: librdkafka doesn't know a setting or a value.
            ClusterFailure: See `fail_if_refused`.
        """
        self.ensure_open()
        if self._admin is None:
            from confluent_kafka.admin import AdminClient

            with self._typed_config():
                self._admin = AdminClient(self._settings(), error_cb=self._store_error)
        self._ensure_accepted()
        return self._admin

    def consumer(self, group: str | None = None, **more: Setting) -> "ck.Consumer":
        """Create a consumer; the caller closes it.

        Args:
            group: Consumer group. None for a consumer to which the caller assigns partitions, and
                which never commits. A consumer without a group needs no rights on groups.
            more: Settings of librdkafka, with underscores instead of dots. By default the consumer
                reports the ends of partitions, doesn't commit by itself, and raises an error for an
                offset outside the log. If the offsets of records don't increase, the consumer
                raises CorruptBatch.

        Raises:
            Closed: `close_for_good` was called.
            ConfigError: librdkafka doesn't know a setting or a value.
            ClusterFailure: See `fail_if_refused`.
        """
        from tidelog.remote.ordered_consumer import OrderedConsumer

        self.ensure_open()
        self._ensure_accepted()
        settings: dict[str, Setting] = {
            "group.id": group or _NO_GROUP,
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
        }
        settings |= {key.replace("_", "."): value for key, value in more.items()}
        with self._typed_config():
            return OrderedConsumer(
                self.bootstrap,
                self._settings() | settings,
                has_group=group is not None,
                error_cb=self._store_error,
            )

    def producer(self, settings: Mapping[str, object]) -> "ck.Producer":
        """Create a producer; the caller closes it.

        Args:
            settings: librdkafka's settings; the settings of this cluster take precedence.

        Raises:
            Closed: `close_for_good` was called.
            ConfigError: librdkafka doesn't know a setting or a value.
            ClusterFailure: See `fail_if_refused`.
        """
        from confluent_kafka import Producer

        self.ensure_open()
        self._ensure_accepted()
        with self._typed_config():
            return Producer({**settings, **self._settings()}, error_cb=self._store_error)

    @property
    def request_timeout_ms(self) -> int:
        """Return librdkafka's timeout for the response to a request, in ms."""
        return min(max(int(self.timeout_s * 1000), 1000), _SOCKET_TIMEOUT_MAX_MS)

    def _settings(self) -> dict[str, Setting]:
        quiet: dict[str, Setting] = {
            "log_level": 0,
            "socket.timeout.ms": self.request_timeout_ms,
            "receive.message.max.bytes": _RESPONSE_BYTES_MAX,
            "client.id": "tidelog",
        }
        return quiet | self._config | {"bootstrap.servers": self.bootstrap}

    def _store_error(self, error: "ck.KafkaError") -> None:
        """Store librdkafka's last error.

        If a request times out later, the message of its error names the stored error as the cause.
        """
        if error.code() != ALL_BROKERS_DOWN:
            self._last_error = error.str()

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
        """Turn librdkafka's exceptions into ClusterFailure; `operation` is a phrase with a verb."""
        from confluent_kafka import KafkaException

        try:
            yield
        except KafkaException as error:
            raise self.failure(operation, error.args[0]) from error
        except FutureTimeout as error:
            reason = f"no response within {self.timeout_s:g} s{self._last_error_text()}"
            raise ClusterFailure(self.bootstrap, operation, reason) from error

    def failure(self, operation: str, error: "ck.KafkaError") -> ClusterFailure:
        """Return the exception to raise for an error of librdkafka."""
        is_timeout = error.code() in (TIMED_OUT, TRANSPORT)
        last_error = self._last_error_text() if is_timeout else ""
        reason = f"{error.name()}: {error.str()}{last_error}"
        refused = _REFUSED_CONNECTION.search(last_error)
        if refused is not None and refused[1] == self.bootstrap:
            reason = refused_text(self.bootstrap, self.bootstrap)
        elif is_timeout and "," in self.bootstrap:
            # another server may have accepted the connection without a response
            if refused is not None:
                last_error = f"; {refused_text(refused[1], self.bootstrap)}"
            reason = f"no server responds{last_error}"
        kind = NotAuthorized if error.code() in _NOT_AUTHORIZED else ClusterFailure
        return kind(self.bootstrap, operation, reason, error_code=error.code())

    def unanswered(
        self, operation: str, partitions: Iterable[TopicPartition], reason: str
    ) -> ClusterFailure:
        """Return the error for partitions whose leaders did not respond in time.

        The error lists the partitions, each with its leader's address if a broker reports it.
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
            f"{reason}{self._last_error_text()}",
        )

    def _leaders(self, topics: Iterable[str]) -> dict[TopicPartition, str]:
        """Return each partition's leader as text; partitions whose lookup failed are left out."""
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

    def _last_error_text(self) -> str:
        if self._admin is not None:
            self._admin.poll(0)  # librdkafka reports errors only when it is polled
        return f" ({self._last_error})" if self._last_error else ""

    def results(
        self, operation: str, futures: "Mapping[_Key, Future[_Result]]"
    ) -> dict[_Key, _Result]:
        """Return the results of all futures; raises ClusterFailure for the first failed future."""
        with self.typed(operation):
            return {
                key: future.result(timeout=self.timeout_s + _GRACE_S)
                for key, future in futures.items()
            }

    def retry(self, request: Callable[[], _Result], *, unready: Collection[int]) -> _Result:
        """Call `request` and return its result; repeat the call if the error code is in `unready`.

        The call is repeated until the timeout, so the request must be safe to send more than once.
        """
        left_s = self.deadline()
        while True:
            try:
                return request()
            except ClusterFailure as error:
                if error.error_code not in unready or left_s() <= 0:
                    raise
            self.admin().poll(_PAUSE_S)

    def deadline(self, *, times: int = 1) -> Callable[[], float]:
        """Return a function that returns the seconds left until a deadline.

        The deadline is `times` request timeouts from now.
        """
        end_ms = self._clock.monotonic_ms() + int(self.timeout_s * 1000) * times
        return lambda: max((end_ms - self._clock.monotonic_ms()) / 1000, 0.0)


# Topic id whose bytes are all 0, as librdkafka prints it; older brokers return this id.
_NO_TOPIC_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"


def id_text(topic_id: object) -> str | None:
    """Return a topic id from librdkafka as Kafka prints it; None if all its bytes are 0."""
    if topic_id is None or str(topic_id) == _NO_TOPIC_ID:
        return None
    # librdkafka writes the id in standard base64, Kafka in URL-safe base64.
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

# Advice that is added to a broker's error message, by error code.
_ADVICE: Final[dict[int, str]] = {
    ErrorCode.MESSAGE_TOO_LARGE: "; raise the topic's max.message.bytes, or make batches smaller"
    " (batch.size; in Spark the option batchBytes)",
    ErrorCode.INVALID_TIMESTAMP: "; the topic's message.timestamp.before.max.ms and"
    " message.timestamp.after.max.ms limit which times are accepted",
    ErrorCode.POLICY_VIOLATION: "; a tidelog broker refuses appends while its clock may be wrong:"
    " its log messages name the reason, and `tidelog accept-clock --data DIR` on the broker's"
    " machine allows appends again",
    ErrorCode.INVALID_RECORD: "; a compacted topic refuses records without a key,"
    " and message.timestamp.before.max.ms and message.timestamp.after.max.ms limit which times are"
    " accepted",
    ErrorCode.PRODUCER_FENCED: "; a newer producer with the same transactional id has"
    " fenced this producer",
}


def typed_error(
    client: Client, operation: str, error: "ck.KafkaError", *, where: str = ""
) -> TidelogError:
    """Return the exception to raise for an error of librdkafka.

    Args:
        client: The cluster that returned the error.
        operation: The operation that failed, as a phrase with a verb.
        error: librdkafka's error.
        where: Topic and partition, empty if the error does not concern a single partition.
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
