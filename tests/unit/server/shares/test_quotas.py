"""A share fetch charges its response to the client's quota, which then throttles the client."""

from pathlib import Path

from tests.unit.server.loops import on_a_loop
from tests.unit.server.shares.share_worlds import acquired, world

from tidelog.storage.directory.broker_files import ClusterState, Quotas

LITTLE: Quotas = {(("client-id", "test"),): {"consumer_byte_rate": 10.0}}


def with_quota(state: ClusterState) -> ClusterState:
    return state._replace(quotas=LITTLE)


@on_a_loop
async def test_a_client_over_its_quota_gets_its_records_and_is_then_throttled(path: Path) -> None:
    async with world(path) as it:
        await it.node.cluster.change(with_quota)
        it.produce(10, 200)
        one = it.member()
        response = await one.fetch(0)
        assert acquired(response) == [(0, 9, 1)]
        assert response.throttle_time_ms == one.connection.throttle_ms > 0


@on_a_loop
async def test_a_client_without_a_quota_is_never_throttled(path: Path) -> None:
    async with world(path) as it:
        it.produce(10)
        assert (await it.member().fetch(0)).throttle_time_ms == 0
