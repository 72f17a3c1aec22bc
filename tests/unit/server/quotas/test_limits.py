"""The quota that applies to a client: the precedence of KIP-55, and clients that share a quota."""

from itertools import product
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.server.admin.quotas import Limits, Quota

if TYPE_CHECKING:
    from tidelog.storage.directory.broker_files import Quotas

KEY = "producer_byte_rate"
# Entities whose quotas apply to user u with client id c, by decreasing precedence. The second
# element of a row is the key under which clients share the entity's quota.
ORDER = [
    ((("client-id", "c"), ("user", "u")), ("u", "c")),
    ((("client-id", None), ("user", "u")), ("u", "c")),
    ((("user", "u"),), ("u", None)),
    ((("client-id", "c"), ("user", None)), ("u", "c")),
    ((("client-id", None), ("user", None)), ("u", "c")),
    ((("user", None),), ("u", None)),
    ((("client-id", "c"),), (None, "c")),
    ((("client-id", None),), (None, "c")),
]
OTHERS = [(("user", "other"),), (("client-id", "d"),), (("client-id", "d"), ("user", "u"))]


@given(st.sets(st.integers(0, len(ORDER) - 1)))
def test_the_most_specific_quota_applies(there: set[int]) -> None:
    quotas = {ORDER[at][0]: {KEY: at + 1.0} for at in there}
    quotas |= {other: {KEY: 99.0} for other in OTHERS}
    quotas |= {ORDER[0][0]: quotas.get(ORDER[0][0], {"consumer_byte_rate": 5.0})}
    found = Limits(quotas, KEY).find("u", "c")
    if not there:
        assert found is None
    else:
        assert found == Quota(*ORDER[min(there)][1], min(there) + 1.0)


@pytest.mark.parametrize(("entity", "shared"), ORDER)
def test_a_client_without_an_id_has_no_part_in_quotas_of_ids(
    entity: tuple[tuple[str, str | None], ...], shared: tuple[str | None, str | None]
) -> None:
    found = Limits({entity: {KEY: 1.0}}, KEY).find("u", "")
    assert found == (Quota("u", None, 1.0) if shared == ("u", None) else None)


def test_no_quota_of_a_kind_is_none() -> None:
    quotas: Quotas = {(("user", "u"),): {KEY: 1.0}}
    assert Limits(quotas, KEY)
    assert not Limits(quotas, "consumer_byte_rate")
    for user, client in product(["u", "v"], ["", "c"]):
        assert (Limits(quotas, KEY).find(user, client) is not None) == (user == "u")
