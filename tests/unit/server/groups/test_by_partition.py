"""What a topic of the broker's own keeps, by partition: as one table of all, at less cost."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.server.groups.test_shards import NAMES, commit, committed, running_node
from tests.unit.server.loops import on_a_loop

from tidelog.server.groups import internal_topic
from tidelog.server.groups.by_partition import ByPartition
from tidelog.server.groups.partitioning import partition_for
from tidelog.server.transactions.log import TransactionLog
from tidelog.server.transactions.steps import InitAsked

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
def test_it_is_as_one_table(history: list[tuple[str, str | int | list[str] | None]]) -> None:
    table: ByPartition[int] = ByPartition(number_of)
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
    """A topic that has got more partitions keeps them where they were."""
    table: ByPartition[str] = ByPartition(number_of)
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
async def test_a_partition_goes_without_a_look_at_the_others_groups(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        await node.groups.shards.ensure_topic()
        for number, name in enumerate(NAMES):
            commit(node.groups, number, name)
        looked_at: list[str] = []

        def noted(name: str, count: int) -> int:
            looked_at.append(name)
            return partition_for(name, count)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(internal_topic, "partition_for", noted)
            node.groups.shards._topic.lose(1)
        assert not looked_at
        of_one = [name for name in NAMES if node.groups.shards.number_of(name) == 1]
        assert {name for name in NAMES if node.groups.find(name) is None} == set(of_one)
        assert all(
            committed(node.groups, name) == number
            for number, name in enumerate(NAMES)
            if name not in of_one
        )


@on_a_loop
async def test_a_partition_goes_without_a_look_at_the_others_ids(tmp_path: Path) -> None:
    async with running_node(tmp_path, transaction_state_log_num_partitions="3") as node:
        transactions = node.transactions
        await transactions.log.ensure_topic()
        for name in NAMES[:30]:
            await transactions.init_producer_id(InitAsked(transactional_id=name, timeout_ms=1000))
        looked_at: list[str] = []

        def noted(_log: TransactionLog, name: str) -> int:
            looked_at.append(name)
            return 1

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TransactionLog, "number_of", noted)
            transactions.log._topic.lose(1)
        assert not looked_at
        left = {each.metadata.transactional_id for each in transactions.table.all()}
        assert left == {name for name in NAMES[:30] if transactions.log.number_of(name) != 1}
        assert 0 < len(left) < 30
