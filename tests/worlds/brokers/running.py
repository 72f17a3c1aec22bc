"""Fixtures of our broker in the tests' process: as a node without sockets, or running.

A test module creates its own fixture: `node = node_fixture(topics={"t": 6})`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Literal, TypeAlias

import pytest

import tidelog
from tidelog.config import BrokerConfig
from tidelog.control.client import ControlClient, find_holder
from tidelog.env import Clock, Env
from tidelog.server.api.node import Node
from tidelog.server.broker import open_node
from tidelog.server.embedded import Broker
from tidelog.server.metrics import exposition
from tidelog.server.shares.record_runs import StateBatch
from tidelog.server.shares.share_partition import SharePartition
from tidelog.server.shares.state_topic import PersistedState

# Without these settings, groups would wait three seconds for more members, and retention would
# start after half a minute and delete the old records that many tests write.
SETTINGS: Final[dict[str, str]] = {
    "log.initial.task.delay.ms": "3600000",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "100",
    "offsets.topic.num.partitions": "3",
}
# All metrics of a broker.
METRICS: Final = [each for each in vars(exposition).values() if isinstance(each, exposition.Family)]

Scope: TypeAlias = Literal["function", "module", "session"]


@contextmanager
def opened_node(
    folder: Path, settings: Mapping[str, str] | None = None, *, env: Env | None = None
) -> Iterator[Node]:
    """Open a node on a directory until the `with` block ends."""
    node = open_node(str(folder), BrokerConfig.parse(settings or {})[0], env=env)
    try:
        yield node
    finally:
        node.close()


def node_fixture(
    settings: Mapping[str, str] | None = None,
    *,
    clock: Callable[[], Clock] | None = None,
    topics: Mapping[str, int] | None = None,
    prepare: Callable[[Node], object] | None = None,
    has_disk: bool = False,
    scope: Scope = "function",
) -> object:
    """Return a fixture that opens a node in `tmp_path`, or in a new folder if `scope` is larger.

    Args:
        settings: Settings of the broker, by Kafka's names.
        clock: Creates the node's clock; the machine's clock if None.
        topics: Topics to create, each with its number of partitions.
        prepare: Called with the node before the first test gets it.
        has_disk: Whether the node uses the file system of the fixture `disk`.
        scope: Scope of the fixture.
    """

    @pytest.fixture(scope=scope)
    def node(request: pytest.FixtureRequest) -> Iterator[Node]:
        env = Env() if clock is None else Env(clock=clock())
        if has_disk:
            env = replace(env, files=request.getfixturevalue("disk"))
        with opened_node(_folder(request, scope), settings, env=env) as node:
            for name, partitions in (topics or {}).items():
                node.log_dir.create_topic(name, partitions=partitions)
            if prepare is not None:
                prepare(node)
            yield node

    return node


def broker_fixture(
    settings: Mapping[str, str] | Callable[[Path], Mapping[str, str]] | None = None,
    *,
    topics: Mapping[str, int] | None = None,
    fill: Callable[[Node], object] | None = None,
    prepare: Callable[[Broker], object] | None = None,
    is_temporary: bool = False,
    scope: Scope = "function",
) -> object:
    """Return a fixture that runs a broker in `tmp_path`, or in a new folder if `scope` is larger.

    Args:
        settings: Settings of the broker, by Kafka's names; or a function of the folder that holds
            `data`.
        topics: Topics to create, each with its number of partitions.
        fill: Called with the node in the broker's loop, before the first test gets the broker.
        prepare: Called with the running broker, before the first test gets it.
        is_temporary: Whether the broker chooses its directory, and has few internal partitions.
        scope: Scope of the fixture.
    """

    @pytest.fixture(scope=scope)
    def broker(request: pytest.FixtureRequest) -> Iterator[Broker]:
        folder = _folder(request, scope)
        given = settings(folder) if callable(settings) else settings
        data = None if is_temporary else str(folder / "data")
        with tidelog.broker(data, settings=given) as running:
            for name, partitions in (topics or {}).items():
                running.call(partial(_create, name=name, partitions=partitions))
            if fill is not None:
                running.call(fill)
            if prepare is not None:
                prepare(running)
            yield running

    return broker


def start_with(data: str, **more: str) -> Broker:
    """Start a broker with `SETTINGS` and `more`; names in `more` have underscores for dots."""
    given = {name.replace("_", "."): text for name, text in more.items()}
    return tidelog.broker(data, settings=SETTINGS | given)


def holder_of(broker: Broker) -> ControlClient:
    """Return a client of a broker's control channel."""
    found = find_holder(broker.data)
    assert found is not None
    return found


def share_states(node: Node, group_id: str) -> list[PersistedState]:
    """Return the loaded states of a share group's partitions."""
    entries = node.shares.states._entries.all.values()
    return [each.state for each in entries if each.key.group_id == group_id]


def offset_states(partition: SharePartition) -> list[StateBatch]:
    """Return the states of all offsets of a share partition from its start on."""
    return [StateBatch(run.first, run.last, run.state, run.count) for run in partition._runs]


def _create(node: Node, name: str, partitions: int) -> None:
    node.log_dir.create_topic(name, partitions=partitions)


def _folder(request: pytest.FixtureRequest, scope: Scope) -> Path:
    """Return the test's folder, or for a larger scope a new folder."""
    if scope == "function":
        path = request.getfixturevalue("tmp_path")
    else:
        path = request.getfixturevalue("tmp_path_factory").mktemp("broker")
    assert isinstance(path, Path)
    return path
