"""ListTransactions by name: accepted patterns, refused patterns, and a time limit."""

import random
from pathlib import Path

from tests.unit.server.loops import on_a_loop
from tests.unit.server.transactions.worlds import World, world

from tidelog.error_codes import ErrorCode
from tidelog.protocol.messages import LIST_TRANSACTIONS
from tidelog.protocol.messages.transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from tidelog.server.api.context import RequestContext
from tidelog.server.api.node import ClientInfo
from tidelog.server.api.transactions import list_transactions

IDS = ("pay-1", "pay-2", "Pay-\u00e9", "stock\n1")


async def listed(it: World, pattern: str | None) -> set[str] | int:
    """Return the matching ids, or the error."""
    facts = ClientInfo(1, "here")
    context = RequestContext(it.node, LIST_TRANSACTIONS, LIST_TRANSACTIONS.last, None, facts)
    said = await list_transactions(
        context, ListTransactionsRequest(transactional_id_pattern=pattern)
    )
    assert isinstance(said, ListTransactionsResponse)
    found = {each.transactional_id for each in said.transaction_states}
    if said.error_code:
        assert not found
        return said.error_code
    return found


@on_a_loop
async def test_names_pass_as_a_whole(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        for each in IDS:
            await it.init(transactional_id=each)
        assert await listed(it, None) == set(IDS)
        assert await listed(it, "") == set(IDS)
        assert await listed(it, "pay") == set()
        assert await listed(it, "pay-[0-9]") == {"pay-1", "pay-2"}
        assert await listed(it, "(?i)PAY-\u00c9") == {"Pay-\u00e9"}
        assert await listed(it, r"(?m)\w+$\s^1") == {"stock\n1"}
        assert await listed(it, r"Pay-\p{Ll}") == {"Pay-\u00e9"}


@on_a_loop
async def test_patterns_are_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        await it.init(transactional_id="pay-1")
        for pattern in ("(", r"\p{Nope}+", "a" * 4097, "a{1001}"):
            assert await listed(it, pattern) == ErrorCode.INVALID_REGULAR_EXPRESSION


@on_a_loop
async def test_a_pattern_that_takes_too_long_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as it:
        for seed in range(10):
            await it.init(transactional_id="".join(random.Random(seed).choices("ab", k=30_000)))
        assert await listed(it, ".*a.{10}x") == set()
        assert await listed(it, ".*a.{900}x") == ErrorCode.INVALID_REGULAR_EXPRESSION
