"""An audit refuses invalid options before it reads its places or creates a folder."""

from pathlib import Path

import pytest
from tests.worlds.directories.topics import make

from tidelog.env import Env
from tidelog.errors import InvalidChoice, InvalidTime
from tidelog.jobs.audit.job import audit
from tidelog.jobs.audit.plan import Pair, Side, pairs_of, plan_audit
from tidelog.spark.places import Place


def test_a_kind_that_does_not_exist_is_refused_before_the_state_is_made(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with pytest.raises(InvalidChoice, match="ignore is 'nonsense'; give one of missing"):
        audit(None, tmp_path / "a", tmp_path / "b", ignore=["nonsense"], state=state)  # type: ignore[arg-type] # no session: Spark is not needed for the refusal
    assert not state.exists()


@pytest.mark.parametrize("bound", ["start", "end"])
def test_an_invalid_time_is_refused_before_the_places_are_read(tmp_path: Path, bound: str) -> None:
    a, b = (Place(str(tmp_path / name)) for name in "ab")
    with pytest.raises(InvalidTime, match="noonish"):
        plan_audit(Env(), a, b, **{bound: "noonish"})  # type: ignore[arg-type] # by name


def test_topics_are_paired_by_name_and_unmatched_ones_have_no_partner(tmp_path: Path) -> None:
    for side, topics in {"a": ("both", "only-a", "old"), "b": ("both", "only-b", "new")}.items():
        for topic in topics:
            make(str(tmp_path / side), topic)
    a, b = (Side(letter=letter, place=Place(str(tmp_path / letter))) for letter in "ab")
    assert pairs_of(a, b, None, {"old": "new"}) == [
        Pair("both", "both"),
        Pair("old", "new"),
        Pair("only-a", None),
        Pair(None, "only-b"),
    ]
    assert pairs_of(a, None, ["only-.*"], {}) == [Pair("only-a", None)]
