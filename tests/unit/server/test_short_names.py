"""Caches by names from clients: long names leave nothing behind."""

from collections.abc import Callable

import pytest

from tidelog.server.groups.consumer import changes
from tidelog.server.groups.partitioning import java_hash, partition_for
from tidelog.server.groups.records import _offset_key
from tidelog.server.quotas.limits import Limit
from tidelog.server.quotas.throttles import _who
from tidelog.server.short_names import NAME_CHARACTERS, is_short, short_key
from tidelog.server.transactions.records import encode_key

LONG = ["n" * 20_000, "\U0001f600", "n" * NAME_CHARACTERS + "n"]
CACHES: list[tuple[str, Callable[[str], object], Callable[..., object]]] = [
    ("java_hash", java_hash, java_hash),
    ("partition_for", lambda name: partition_for(name, 50), partition_for),
    ("offset of a group", lambda name: _offset_key(name, "t", 0), _offset_key),
    ("offset of a topic", lambda name: _offset_key("g", name, 0), _offset_key),
    ("transaction", encode_key, encode_key),
    ("group", lambda name: changes._group_key(3, name), changes._group_key),
    ("member", lambda name: changes._member_key(5, "g", name), changes._member_key),
]


@pytest.mark.parametrize(
    ("use", "cache"), [each[1:] for each in CACHES], ids=[each[0] for each in CACHES]
)
def test_long_names_are_not_remembered(
    use: Callable[[str], object], cache: Callable[..., object]
) -> None:
    size = cache.cache_info().currsize  # type: ignore[attr-defined]
    for name in LONG:
        assert use(name) == use(name)
    assert cache.cache_info().currsize == size  # type: ignore[attr-defined]
    assert use("short enough") == use("short enough")
    assert cache.cache_info().currsize == size + 1  # type: ignore[attr-defined]


def test_names_are_short_together() -> None:
    half = "n" * (NAME_CHARACTERS // 2)
    assert is_short(half, half)
    assert not is_short(half, half, "n")


@pytest.mark.parametrize("length", [*range(3), 63, 64, 65, 127, 128, 129, 1000])
def test_the_hash_of_a_long_name_is_java_s(length: int) -> None:
    name = "ab\U0001f600"[: length % 4] + "x\u00e9" * (length // 2)
    expected = 0
    units = name.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        expected = (expected * 31 + (high << 8 | low)) & 0xFFFFFFFF
    assert java_hash(name) == (expected ^ 0x80000000) - 0x80000000


def test_the_use_of_long_client_ids_is_counted_by_digests() -> None:
    names = ["c" * 30_000 + end for end in "ab"]
    keys = {_who(Limit(None, name, 1.0))[1] for name in names}
    assert len(keys) == 2
    assert all(len(key or "") < NAME_CHARACTERS for key in keys)
    assert short_key("app") == "app"
