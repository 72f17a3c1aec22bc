"""Repeated requests, with changes between them.

A broker may cache its response to a request that clients repeat. A client must never get an
outdated response after a topic was changed, deleted or recreated, or after a change of rights or
quotas.
"""

from collections.abc import Iterator
from pathlib import Path

from tests.corpus.exchanges.batches import batch
from tests.corpus.exchanges.codec import TAGS
from tests.corpus.exchanges.identities import context, logged_in, secured
from tests.corpus.exchanges.line import Line
from tests.corpus.exchanges.registry import FLIGHTS, flights
from tests.corpus.exchanges.scripts.cluster import DENY, LITERAL, TOPIC, acl, filtered
from tests.corpus.exchanges.scripts.configs import SET, quota
from tests.corpus.exchanges.scripts.records import (
    WITH_TIMES,
    fetched,
    produced,
    searched,
    topic_of,
)
from tests.corpus.exchanges.session import NOW_MS, Stage
from tests.corpus.exchanges.values import Tree, Value, number

ALL = 2
OTHER = "other"
PRODUCE_VERSIONS = (7, 9, 13)
FETCH_VERSIONS = (4, 11, 12, 17)
LIST_OFFSETS_VERSIONS = (1, 7, 11)
TIMES = 3


class Client:
    """A client with a connection for each API and version, on which it repeats its requests."""

    def __init__(self, stage: Stage, keys: Path | None, listener: str | None) -> None:
        self._stage = stage
        self._keys = keys
        self._listener = listener
        self._names = set[str]()

    def line(self, name: str) -> Line:
        """Return the connection of a name, authenticated if the listener requires it."""
        is_tls = self._listener == "SSL" and self._keys is not None
        given = context(self._keys, shows="alice") if is_tls and self._keys else None
        line = self._stage.line(name, self._listener, given)
        if self._listener == "SASL_PLAINTEXT" and name not in self._names:
            logged_in(line, "alice")
        self._names.add(name)
        return line

    def ask(self, api: str, version: int, tree: Tree, words: str = "") -> Tree:
        """Send a request on the connection of the API and version."""
        return self.line(f"{api}-{version}").ask(api, version, tree, words)


def play(home: Path) -> Iterator[tuple[str, Stage]]:
    """Play with an unsecured broker, one with rights and quotas, and one that also has TLS."""
    with Stage(home / "plain") as stage:
        _prepared(stage)
        _told(stage, Client(stage, None, None))
    yield "plain", stage
    for name, listener in (("rights", "SASL_PLAINTEXT"), ("tls", "SSL")):
        keys = home / f"{name}-keys"
        with Stage(home / name, secured(keys)) as stage:
            _prepared(stage)
            _allowed(stage)
            client = Client(stage, keys, listener)
            _told(stage, client)
            _guarded(stage, client)
        yield name, stage


def _prepared(stage: Stage) -> None:
    flights(stage)
    stage.create_topic(OTHER)


def _allowed(stage: Stage) -> None:
    every: list[Value] = [acl(topic, TOPIC, operation=ALL) for topic in (FLIGHTS, OTHER)]
    stage.main.quiet("create_acls", 3, {"creations": every})


def _told(stage: Stage, client: Client) -> None:
    stage.chapter("repeated")
    for version in PRODUCE_VERSIONS:
        for _ in range(TIMES):
            client.ask("produce", version, produced(stage, batch(NOW_MS)))
        longer = batch(NOW_MS, [b"longer than the others"])
        client.ask("produce", version, produced(stage, longer))
        client.ask("produce", version, produced(stage, batch(NOW_MS)[:-1] + b"!"), "damaged")
        client.ask("produce", version, produced(stage, batch(NOW_MS)), "sound again")
        client.ask("produce", version, produced(stage, batch(NOW_MS), partition=1, acks=1))
        client.ask("produce", version, _two(stage))
        client.ask("produce", version, _two(stage))
        client.ask("produce", version, produced(stage, batch(NOW_MS)), "as at first")
    _numbered(stage, client)
    _read(stage, client)
    _changed(stage, client)


def _two(stage: Stage) -> Tree:
    """Return a Produce request of two topics with two partitions each."""
    parts: list[Value] = [{"index": n, "records": batch(NOW_MS + n, [b"two"])} for n in range(2)]
    topics: list[Value] = [
        {**topic_of(stage, name), "partition_data": parts} for name in (FLIGHTS, OTHER)
    ]
    return {"acks": -1, "timeout": 1000, "topic_data": topics}


def _numbered(stage: Stage, client: Client) -> None:
    stage.chapter("numbered")
    given = stage.main.quiet("init_producer_id", 4, {"transactional_id": None, "producer_id": -1})
    own = number(given, "producer_id")
    line = client.line("numbered")
    for sequence in (0, 2, 4, 4, 2, 6, 9, 8):
        made = batch(NOW_MS, producer=(own, 0, sequence))
        line.ask("produce", 9, produced(stage, made), f"sequence {sequence}")


def _read(stage: Stage, client: Client) -> None:
    """Repeat the same reads, each several times."""
    stage.chapter("read")
    for version in FETCH_VERSIONS:
        for offset in (0, 3, 2, 99, 0):
            for _ in range(TIMES - 1):
                client.ask("fetch", version, fetched(stage, offset, largest=200))
        client.ask("fetch", version, _both(stage, 0))
        client.ask("fetch", version, _both(stage, 4))
    timed = client.line("timed")
    for _ in range(TIMES):
        timed.ask("fetch", 12, {**fetched(stage, 0, largest=100), TAGS: WITH_TIMES})
    for version in LIST_OFFSETS_VERSIONS:
        for time in (-1, -2, NOW_MS - 1500, -1, NOW_MS + 9):
            for _ in range(TIMES - 1):
                client.ask("list_offsets", version, searched(time))
    _session(stage, client.line("session"))


def _both(stage: Stage, offset: int) -> Tree:
    """Return a Fetch request of two topics with two partitions each."""
    parts: list[Value] = [
        {
            "partition": number,
            "current_leader_epoch": -1,
            "fetch_offset": offset if number == 0 else 0,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": 150,
        }
        for number in range(2)
    ]
    topics: list[Value] = [
        {**topic_of(stage, name, "topic"), "partitions": parts} for name in (FLIGHTS, OTHER)
    ]
    return {**fetched(stage, 0), "topics": topics}


def _session(stage: Stage, line: Line) -> None:
    tree = fetched(stage, 0, largest=100)
    first = line.ask("fetch", 12, {**tree, "session_epoch": 0}, "opens a session")
    own: Tree = {**tree, "session_id": number(first, "session_id"), "topics": []}
    for epoch in range(1, 4):
        line.ask("fetch", 12, {**own, "session_epoch": epoch}, "within the session")
    line.ask("fetch", 12, {**own, "session_epoch": -1}, "closes the session")


def _once(stage: Stage, client: Client, words: str) -> None:
    """After a change, send each request twice, on the connection that sent it before the change."""
    stage.note(words)
    for _ in range(2):
        for version in (9, 13):
            client.ask("produce", version, produced(stage, batch(NOW_MS)))
        for version in (12, 17):
            client.ask("fetch", version, fetched(stage, 3, largest=200))
        for time in (-1, -2, NOW_MS - 1500):
            client.ask("list_offsets", 7, searched(time))


def _set(stage: Stage, key: str, value: str) -> None:
    config: Tree = {"name": key, "config_operation": SET, "value": value}
    resource: Tree = {"resource_type": TOPIC, "resource_name": FLIGHTS, "configs": [config]}
    stage.main.ask("incremental_alter_configs", 1, {"resources": [resource]})


def _changed(stage: Stage, client: Client) -> None:
    stage.chapter("changed")
    part: Tree = {"partition_index": 0, "offset": 2}
    gone: Tree = {"topics": [{"name": FLIGHTS, "partitions": [part]}], "timeout": 1000}
    stage.main.ask("delete_records", 2, gone)
    _once(stage, client, "records are deleted")
    _set(stage, "message.timestamp.type", "LogAppendTime")
    _once(stage, client, "the log's own time is kept")
    stage.advance(5000)
    _once(stage, client, "five seconds later")
    _set(stage, "message.timestamp.type", "CreateTime")
    _set(stage, "tidelog.lookup.clock", "append")
    _once(stage, client, "lookups go by append time")
    _set(stage, "tidelog.expose.append.time", "true")
    _once(stage, client, "append times are shown in headers")
    _set(stage, "max.message.bytes", "80")
    _once(stage, client, "batches are too large")
    _set(stage, "max.message.bytes", "1000")
    _set(stage, "min.insync.replicas", "2")
    _once(stage, client, "too few replicas")
    names: list[Value] = [{"name": FLIGHTS}]
    stage.main.ask("delete_topics", 6, {"topics": names, "timeout": 1000})
    _once(stage, client, "the topic is deleted")
    stage.create_topic(FLIGHTS)
    _once(stage, client, "a topic of its name is created")


def _guarded(stage: Stage, client: Client) -> None:
    """Change rights and quotas between requests."""
    stage.chapter("rights")
    denied = acl(FLIGHTS, TOPIC, operation=ALL, permission=DENY)
    stage.main.ask("create_acls", 3, {"creations": [denied]})
    _once(stage, client, "everything is denied")
    taken = filtered(TOPIC, FLIGHTS, pattern=LITERAL, permission_type=DENY)
    stage.main.ask("delete_acls", 3, {"filters": [taken]})
    _once(stage, client, "it is allowed again")
    stage.main.ask("delete_acls", 3, {"filters": [filtered(TOPIC, FLIGHTS, pattern=LITERAL)]})
    _once(stage, client, "no rule is left")
    _allowed(stage)
    stage.chapter("quotas")
    alice = ("user", "alice")
    rates = quota(alice, producer_byte_rate=1e6, consumer_byte_rate=1e6, request_percentage=200.0)
    stage.main.ask("alter_client_quotas", 1, rates)
    _once(stage, client, "quotas that are not reached")
    stage.main.ask("alter_client_quotas", 1, quota(alice, producer_byte_rate=20.0))
    for _ in range(2):
        answer = client.ask("produce", 9, produced(stage, batch(NOW_MS)))
        stage.advance(number(answer, "throttle_time"))
    stage.main.ask("alter_client_quotas", 1, quota(alice, producer_byte_rate=None))
    _once(stage, client, "no quota of appends")
