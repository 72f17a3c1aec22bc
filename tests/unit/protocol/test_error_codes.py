"""Kafka's error codes, wherever the source names one, are those of the protocol. Source: kio."""

import importlib
import pkgutil
from collections.abc import Iterator
from enum import IntEnum
from functools import cache

import tidelog

# Names of the protocol's errors that mean something else here too.
OTHER_MEANINGS = {"NONE"}


@cache
def protocols() -> dict[str, int]:
    """The numbers of all errors by their names in capitals."""
    from kio.schema.errors import ErrorCode

    return {code.name.upper(): code.value for code in ErrorCode}


def modules() -> Iterator[str]:
    """Those that can be imported without a Spark session or a demo."""
    for found in pkgutil.walk_packages(tidelog.__path__, "tidelog."):
        if not found.name.startswith(("tidelog.spark", "tidelog.demo")):
            yield found.name


def named_codes(name: str) -> dict[str, int]:
    """Constants and members of enums with the name of an error, by where they stand."""
    module = importlib.import_module(name)
    found: dict[str, int] = {}
    for key, value in vars(module).items():
        if isinstance(value, int) and not isinstance(value, bool):
            found[key] = value
        elif isinstance(value, type) and issubclass(value, IntEnum) and value is not IntEnum:
            found |= {f"{key}.{member.name}": member.value for member in value}
    return {
        where: code
        for where, code in found.items()
        if (last := where.rpartition(".")[2]) in protocols() and last not in OTHER_MEANINGS
    }


def test_every_error_code_has_the_protocol_s_number() -> None:
    wrong, seen = [], set[str]()
    for name in modules():
        for where, code in named_codes(name).items():
            last = where.rpartition(".")[2]
            seen.add(last)
            if code != protocols()[last]:
                wrong.append(f"{name}.{where} is {code}, the protocol says {protocols()[last]}")
    assert not wrong
    assert len(seen) > 50, "codes are looked for where there are none"
