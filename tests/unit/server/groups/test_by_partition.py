"""Partitioned maps equal one plain map; if a partition is lost, only its entries are removed."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.faults.hooked import FailingDisk
from tests.unit.server.groups.test_shards import NAMES, commit, committed, fail, running_node
from tests.unit.server.loops import on_a_loop

from tidelog.env import Env
from tidelog.server.coordinator.java_hash import partition_for
from tidelog.server.coordinator.state_topic import PartitionedMap
from tidelog.server.transactions.metadata import InitRequest
from tidelog.types import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

COUNT = 4
names = st.sampled_from([f"name {n}" for n in range(12)])
steps = st.one_of(
    st.tuples(st.just("put"), names),
    st.tuples(st.just("remove"), names),
    st.tuples(st.just("take out"), st.none() | st.integers(0, COUNT)),
    st.tuples(st.just("put all"), st.lists(names)),
)


def number_of(name: str) -> int:
    return partition_for(name, COUNT)


@given(st.lists(steps, max_size=40))
def test_a_partitioned_map_equals_one_table(
    history: list[tuple[str, str | int | list[str] | None]],
) -> None:
    table: PartitionedMap[int] = PartitionedMap(number_of)
    model: dict[str, int] = {}
    for at, (step, what) in enumerate(history):
        if step == "put" and isinstance(what, str):
            table.put(what, at)
            model[what] = at
        elif step == "remove" and isinstance(what, str):
            table.remove(what)
            model.pop(what, None)
        elif isinstance(what, list):
            found = {name: at for name in what if number_of(name) == 1}
            table.put_all(1, found)
            model |= found
        else:
            gone = {name for name in model if what is None or number_of(name) == what}
            assert isinstance(what, int | None)
            assert sorted(table.take_out(what)) == sorted(model.pop(name) for name in gone)
        assert table.all == model


def test_names_are_found_where_they_were_read() -> None:
    """A name may be loaded from a wrong partition; a later put moves it to its own partition."""
    table: PartitionedMap[str] = PartitionedMap(number_of)
    name = "name 3"
    elsewhere = (number_of(name) + 1) % COUNT
    table.put_all(elsewhere, {name: "old", "other": "old"})
    table.remove("other")
    table.put(name, "new")
    assert table.take_out(elsewhere) == []
    assert table.all == {name: "new"}
    assert table.take_out(number_of(name)) == ["new"]
    assert not table.all


@on_a_loop
async def test_a_lost_partition_removes_only_its_own_groups(tmp_path: Path) -> None:
    disk = FailingDisk()
    async with running_node(tmp_path, Env(files=disk)) as node:
        await node.groups.topic.ensure_topic()
        for number, name in enumerate(NAMES):
            commit(node.groups, number, name)
        fail(node.partitions.get(OFFSETS_TOPIC, 1), disk)
        of_one = [name for name in NAMES if node.groups.topic.number_of(name) == 1]
        assert {name for name in NAMES if node.groups.find(name) is None} == set(of_one)
        assert all(
            committed(node.groups, name) == number
            for number, name in enumerate(NAMES)
            if name not in of_one
        )
        node.partitions.get(OFFSETS_TOPIC, 1).use(node.log_dir.reopen(OFFSETS_TOPIC, 1))


@on_a_loop
async def test_a_lost_partition_removes_only_its_own_transactional_ids(
    tmp_path: Path,
) -> None:
    disk = FailingDisk()
    settings = {"transaction_state_log_num_partitions": "3"}
    async with running_node(tmp_path, Env(files=disk), **settings) as node:
        transactions = node.transactions
        await transactions.topic.ensure_topic()
        for name in NAMES[:30]:
            await transactions.init_producer_id(InitRequest(transactional_id=name, timeout_ms=1000))
        fail(node.partitions.get(TRANSACTIONS_TOPIC, 1), disk)
        left = {each.metadata.transactional_id for each in transactions.table.all()}
        assert left == {name for name in NAMES[:30] if transactions.topic.number_of(name) != 1}
        assert 0 < len(left) < 30
        node.partitions.get(TRANSACTIONS_TOPIC, 1).use(node.log_dir.reopen(TRANSACTIONS_TOPIC, 1))
