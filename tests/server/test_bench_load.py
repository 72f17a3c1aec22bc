"""The benchmark's load generators work like clients, and count the completed work."""

import os
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from bench.broker_cells import Cell
from bench.broker_group_load import ClassicMember, ConsumerMember, Members
from bench.broker_load import Address
from bench.broker_servers import Topics
from bench.broker_tls import TlsSide
from bench.broker_transaction_load import run_all
from bench.broker_transactions import RECORDS, Kind, begun
from tests.worlds.brokers.certificates import Authority
from tests.worlds.brokers.running import SETTINGS
from tests.worlds.clients.raw import RawClient
from tests.worlds.clients.transacting import GROUP_KEY, find_coordinator
from tests.worlds.waiting import until_so

import tidelog
from tidelog.server.embedded import Broker
from tidelog.types import Codec

COMMITTED = 1


def address_of(broker: Broker) -> Address:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return host, int(port)


@dataclass
class Served:
    """Address of a broker in this process, for benchmark code that expects a broker process."""

    bootstrap: str
    tls_port: int = 0
    pid: int = os.getpid()

    def start(self) -> None: ...

    def stop(self) -> None: ...


@pytest.mark.parametrize("kind", [Kind(3), Kind(1, partitions=4), Kind(2, 2, classic=True)])
def test_all_records_of_transactions_are_committed(broker: Broker, kind: Kind) -> None:
    Topics(Served(broker.bootstrap_servers)).create("ledger", kind.partitions)
    producers = [begun(address_of(broker), kind, "ledger", n) for n in range(kind.producers)]
    # The time limit is 0, but each run still commits one transaction per producer.
    done = sum(run_all(producers, 0) for _ in range(3))
    for each in producers:
        each.close()
    assert done == 3 * kind.producers
    # In each partition, each transaction has its records and one marker.
    end = done * (RECORDS // kind.partitions + 1)
    with RawClient(broker.bootstrap_servers) as client:

        def ends() -> list[int]:
            return [
                client.list_offsets("ledger", -1, partition=n, isolation_level=COMMITTED)[0].offset
                for n in range(kind.partitions)
            ]

        until_so(lambda: ends() == [end] * kind.partitions, f"{end} offsets are committed")


@pytest.mark.parametrize("member", [ClassicMember, ConsumerMember])
def test_members_settle_with_all_partitions(
    broker: Broker, member: type[ClassicMember] | type[ConsumerMember]
) -> None:
    Topics(Served(broker.bootstrap_servers)).create("shared", 7)
    with RawClient(broker.bootstrap_servers) as client:
        find_coordinator(client, "group", GROUP_KEY)
    members = Members(7)
    first = [member(address_of(broker), "group", "shared", 7) for _ in range(3)]
    members.join(*first)
    members.settle()
    assert sorted(each.count for each in first) == [2, 2, 3]
    another = member(address_of(broker), "group", "shared", 7)
    members.join(another)
    members.settle()
    assert sorted(each.count for each in (*first, another)) == [1, 2, 2, 2]
    members.leave(another)
    members.settle()
    assert sorted(each.count for each in first) == [2, 2, 3]
    members.disband()


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[tuple[Broker, Path]]:
    authority = Authority(tmp_path)
    settings = SETTINGS | {
        "listeners": "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0",
        "ssl.keystore.location": str(authority.issue("broker")),
    }
    with tidelog.broker(str(tmp_path / "data"), settings=settings) as running:
        yield running, authority.path


def test_records_produced_through_tls_are_consumed_through_it(secured: tuple[Broker, Path]) -> None:
    broker, authority = secured
    served = Served(broker.bootstrap_servers, broker.ports["SSL"])
    cell = Cell(100, Codec.NONE, 1, small=True)
    side = TlsSide(served, Topics(served), authority, cell, 100_000)
    side.renew()
    assert side.produce() > 0
    assert side.consume() > 0
    with RawClient(broker.bootstrap_servers) as client:
        assert client.list_offsets(side.topic, -1)[0].offset == side.count * cell.batch_records
    with closing(side.client()) as through:
        assert through.cipher.startswith("TLSv1.3")
