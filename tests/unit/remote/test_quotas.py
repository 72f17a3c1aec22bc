"""Quotas of a cluster whose brokers are down or don't support quotas."""

import pytest
from tests.worlds.clusters.fake_leader import HOST, PORT, FakeLeader

from tidelog.errors import ClusterFailure, UnsupportedVersion
from tidelog.protocol.messages import DESCRIBE_CLIENT_QUOTAS
from tidelog.remote import administration, broker_connection
from tidelog.remote.broker_connection import Transport
from tidelog.remote.cluster import Cluster


def test_a_broker_without_quotas_is_named_and_its_connection_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = FakeLeader(versions={DESCRIBE_CLIENT_QUOTAS.key: -1})
    closed: list[int] = []

    def connect(host: str, port: int, *, timeout_s: float) -> Transport:
        transport = leader.connect(host, port)
        monkeypatch.setattr(transport, "close", lambda: closed.append(port))
        return transport

    monkeypatch.setattr(broker_connection, "connect_socket", connect)
    cluster = Cluster(f"{HOST}:{PORT}", {}, timeout_s=1, clock=leader.env.clock)
    with pytest.raises(UnsupportedVersion, match=r"leader:9092.*DescribeClientQuotas.*none"):
        administration.quotas(cluster)
    assert closed == [PORT]


def test_the_next_bootstrap_server_replaces_one_that_is_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leader = FakeLeader(versions={DESCRIBE_CLIENT_QUOTAS.key: -1})
    asked: list[int] = []

    def connect(host: str, port: int, *, timeout_s: float) -> Transport:
        asked.append(port)
        if port != PORT:
            raise ConnectionRefusedError("down")
        return leader.connect(host, port)

    monkeypatch.setattr(broker_connection, "connect_socket", connect)
    servers = [f"{HOST}:{port}" for port in (1, PORT, 2)]
    cluster = Cluster(",".join(servers), {}, timeout_s=1, clock=leader.env.clock)
    with pytest.raises(UnsupportedVersion, match="leader:9092"):
        administration.quotas(cluster)
    assert asked == [1, PORT]
    cluster = Cluster(f"{HOST}:1,{HOST}:2", {}, timeout_s=1, clock=leader.env.clock)
    with pytest.raises(ClusterFailure, match=r"leader:2: .*connection refused"):
        administration.quotas(cluster)
    assert asked == [1, PORT, 1, 2]
