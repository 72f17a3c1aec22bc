"""The check of the order of keys: the limit for two partitions, and the limit for the driver."""

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest

from tidelog.jobs.audit import run
from tidelog.jobs.audit.key_verdicts import PAIR_FIELDS
from tidelog.jobs.audit.plan import Pair
from tidelog.jobs.audit.run import AuditWork, Section, TopicResult

if TYPE_CHECKING:
    from tidelog.record.kernels.memory import Longs


def test_pairs_with_too_many_keys_are_noted_and_the_rest_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listener = _Notes()
    checked: list[tuple[str, list[str]]] = []
    plan = SimpleNamespace(options={"listener": listener})
    work = cast("AuditWork", SimpleNamespace(env=None, folder="f", plan=plan, spark=None))
    result = TopicResult(history=True)
    result.sections = {(0, 0): [("x", 0, 5, 0)], (0, 1): [("y", 0, 3, 0), ("z", 0, 1, 0)]}

    def displaced_in(env: object, folder: str, sections: Sequence[Section]) -> "Longs":
        checked.append(("driver", [name for name, *_ in sections]))
        return np.empty((0, PAIR_FIELDS), np.int64)

    def run_parts(spark: object, parts: Sequence[str], *_: object) -> list[dict[str, object]]:
        checked.extend(("task", [name for name, *_ in json.loads(part)]) for part in parts)
        return []

    monkeypatch.setattr(run, "displaced_in", displaced_in)
    monkeypatch.setattr(run, "run_parts", run_parts)
    monkeypatch.setattr(run, "_PAIRS_MAX", 4)
    for on_driver, place in ((9, "driver"), (8, "task")):
        checked.clear()
        monkeypatch.setattr(run, "_PAIRS_ON_DRIVER_MAX", on_driver)
        assert list(run._check_order(work, Pair("t", "t"), result)) == [
            "t: the order of 5 keys of partition 0 of A and 0 of B was not compared; the limit is 4"
        ]
        assert checked == [(place, ["y", "z"])]
    assert listener.notes == ["t: checking the order of 9 keys"]


class _Notes:
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)
