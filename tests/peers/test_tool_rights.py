"""Transactions, share groups and features through real clients and tools, by users with few rights.

With Kafka and with our broker, each client shows the same results and codes. A plain model
(tool_rights) decides what the ACLs allow.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from tests.peers.admin_table import SEEN
from tests.peers.rights_questions import BATCH
from tests.peers.rights_sides import Side, sides
from tests.peers.tool_rights import (
    TOOL_USERS,
    Step,
    Told,
    by_aiokafka,
    by_confluent,
    by_java,
    by_kafka_python,
    is_allowed,
)
from tests.worlds.clients.rights_process_drivers import java_config
from tests.worlds.clients.rights_talk import LENT, SUPER, TRANSACTION, codes_in, lend, logged_in
from tests.worlds.kafka.home import KafkaHome
from tests.worlds.kafka.oracle import Oracle

from tidelog.protocol.messages import PRODUCE
from tidelog.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)

__all__ = ["sides"]
pytestmark = pytest.mark.kafka

ROWS_LEAST: Final = 300


def test_the_table_is_large_and_each_step_is_allowed_to_some_only() -> None:
    rows = {(user, step): is_allowed(user, step) for user in TOOL_USERS for step in Step}
    assert len(rows) >= ROWS_LEAST
    for step in set(Step) - {Step.FEATURES}:  # a request that every user may send
        assert {rows[user, step] for user in TOOL_USERS} == {True, False}, step


def renew(bootstrap: str) -> None:
    """Create the share group without members, and append a record that the group can acquire."""
    data = [PartitionProduceData(index=0, records=BATCH)]
    topics = [TopicProduceData(name=SEEN, partition_data=data)]
    asked = ProduceRequest(transactional_id=None, acks=-1, timeout_ms=90_000, topic_data=topics)
    with logged_in(bootstrap, SUPER) as client:
        lend(client)
        assert not any(codes_in(client.ask(PRODUCE, 9, asked)))


@pytest.fixture
def clients(kafka_oracle: Oracle) -> Mapping[str, Callable[[str, str], Told]]:
    """Return the clients by name; each takes a broker's address and a user."""
    return {
        "Java": partial(by_java, kafka_oracle),
        "confluent-kafka": by_confluent,
        "aiokafka": by_aiokafka,
        "kafka-python": by_kafka_python,
    }


@pytest.mark.parametrize("user", TOOL_USERS)
def test_clients_show_the_same(
    sides: tuple[Side, Side], clients: Mapping[str, Callable[[str, str], Told]], user: str
) -> None:
    wrong = []
    for name, ask in clients.items():
        for side in sides:
            renew(side.bootstrap)
        kafka, ours = (ask(side.bootstrap, user) for side in sides)
        for step, shown in kafka.items():
            if shown != ours[step]:
                wrong.append(f"{name}, {step}: Kafka {shown!r}, ours {ours[step]!r}")
            if (shown == 0) != is_allowed(user, step):
                wrong.append(f"{name}, {step}: {shown!r}, though allowed: {is_allowed(user, step)}")
    assert not wrong, "\n".join(wrong)


# -- tools ---------------------------------------------------------------------------------------

SHARES: Final = "consumer.group.ShareGroupCommand"
TRANSACTIONS: Final = "TransactionsCommand"
FEATURES: Final = "FeatureCommand"
TOOLS: Final = (
    (SHARES, "--describe", "--group", LENT),
    (SHARES, "--describe", "--members", "--group", LENT),
    (SHARES, "--reset-offsets", "--to-earliest", "--topic", SEEN, "--execute", "--group", LENT),
    (SHARES, "--delete-offsets", "--topic", SEEN, "--group", LENT),
    (SHARES, "--delete", "--group", LENT),
    (TRANSACTIONS, "list"),
    (TRANSACTIONS, "describe", "--transactional-id", TRANSACTION),
    (TRANSACTIONS, "forceTerminateTransaction", "--transactionalId", TRANSACTION),
    (FEATURES, "describe"),
    (FEATURES, "upgrade", "--feature", "transaction.version=2"),
    (FEATURES, "downgrade", "--feature", "transaction.version=9"),
)
# Pattern of the texts by which the tools report a denial.
DENIAL: Final = re.compile("authoriz|needs [A-Z]+ permission", re.IGNORECASE)


@pytest.fixture(scope="module")
def tools(kafka_jars: KafkaHome) -> Iterator[Oracle]:
    """A JVM for the tools, which ends after the tests of this module.

    A tool that ends with an error does not close its client. In the JVM that all tests share, the
    client would try to connect to the ended broker for the rest of the session.
    """
    with Oracle(kafka_jars) as oracle:
        yield oracle


@pytest.mark.parametrize("user", ["nobody", "lenders-boss", "lender", "producer", "all"])
def test_tools_end_with_equal_status(
    sides: tuple[Side, Side], tools: Oracle, tmp_path: Path, user: str
) -> None:
    """With both brokers a tool has the same exit status, and its output shows the same denials."""
    for main_class, *arguments in TOOLS:
        ends = []
        for side in sides:
            renew(side.bootstrap)
            given = tmp_path / "settings"
            more = ("--command-config", str(given))
            settings = java_config(side.bootstrap, user).items()
            given.write_text("".join(f"{name}={value}\n" for name, value in settings))
            told = tools.ask(
                "tool",
                main_class=f"org.apache.kafka.tools.{main_class}",
                args=[*("--bootstrap-server", side.bootstrap), *more, *arguments],
            )
            assert isinstance(told, dict)
            said = str(told["said"])
            ends.append((told["status"], bool(DENIAL.search(said)), TRANSACTION in said))
        assert ends[0] == ends[1], (main_class, arguments)
