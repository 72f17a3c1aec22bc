"""The garbage collector during imports and while files are opened."""

import gc
from collections.abc import Iterator

import pytest

import tidelog
from tidelog.gc_pauses import collection_paused, take_as_old, take_modules_as_old


@pytest.fixture
def frozen() -> Iterator[int]:
    gc.freeze()
    yield gc.get_freeze_count()
    gc.unfreeze()


def test_an_import_keeps_objects_frozen(frozen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    tidelog.__getattr__("Directory")
    monkeypatch.delitem(vars(tidelog), "Directory")
    tidelog.__getattr__("Directory")  # the second import of the name
    take_modules_as_old()
    # Reference counting has freed some frozen objects, so fewer than `frozen` are left.
    assert gc.get_freeze_count() > frozen // 2


@pytest.mark.usefixtures("frozen")
def test_openings_count_as_old_in_any_process() -> None:
    made: list[list[int]] = [[] for _ in range(100)]
    take_as_old()
    young = {id(each) for generation in (0, 1) for each in gc.get_objects(generation=generation)}
    assert not young & set(map(id, made))


def test_the_collector_continues_after_a_pause() -> None:
    with collection_paused():
        assert not gc.isenabled()
    assert gc.isenabled()
