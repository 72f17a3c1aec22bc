"""Replays the corpus: each page must equal the kept one."""

import fcntl
import json
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet
from tests.corpus.book import KEPT, Entry, belongs, pages, read_part
from tests.corpus.differences import differences, report
from tests.corpus.stage import PartFailed, parts, perform

KEPT_MAX_BYTES = 6_000_000
NEEDS_SPARK = {"jobs"}

Playing = Callable[[str], dict[str, Entry]]


def part_param(name: str) -> ParameterSet:
    on_spark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]
    return pytest.param(name, marks=on_spark if name.split("/")[0] in NEEDS_SPARK else [])


def page_names() -> list[str]:
    names = (path.name.split(".")[0] for part in parts() for path in pages(part))
    homes = (part for part in parts() for _ in pages(part))
    return [f"{home}/{name}" for home, name in zip(homes, names, strict=True)]


def rows_of(part: str) -> list[tuple[str, str]] | str:
    """Return name and text of each entry, or the error of a failed part."""
    try:
        return [(entry.name, entry.text) for entry in perform(part).values()]
    except PartFailed as failure:
        return str(failure)


@pytest.fixture(scope="session")
def playing(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Playing:
    """Return a function that plays a part only once, even if tests run in several processes."""
    base = tmp_path_factory.getbasetemp()
    shared = base if worker_id == "master" else base.parent

    @cache
    def play(part: str) -> dict[str, Entry]:
        played = shared / f"corpus-{part}.json"
        with Path(f"{played}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not played.exists():
                played.write_text(json.dumps(rows_of(part)))
        rows = json.loads(played.read_text())
        assert not isinstance(rows, str), rows
        return {name: Entry(name, text) for name, text in rows}

    return play


@cache
def kept_of(part: str) -> Mapping[str, Entry]:
    return read_part(part)


@pytest.mark.parametrize("page", [*map(part_param, page_names())])
def test_page_is_as_it_is_kept(page: str, playing: Playing) -> None:
    part = page.split("/")[0]
    kept = {name: entry for name, entry in kept_of(part).items() if belongs(name, page)}
    now = {name: entry for name, entry in playing(part).items() if belongs(name, page)}
    found = list(report(differences(kept, now)))
    assert not found, "\n".join(["as kept, or ./run corpus accept", *found])


@pytest.mark.parametrize("part", [*map(part_param, parts())])
def test_part_has_no_page_that_is_not_kept(part: str, playing: Playing) -> None:
    assert {entry.page for entry in playing(part).values()} - set(page_names()) == set()


def test_the_corpus_stays_small() -> None:
    assert sum(path.stat().st_size for path in KEPT.rglob("*.txt*")) <= KEPT_MAX_BYTES
