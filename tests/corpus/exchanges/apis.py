"""Every announced API in every announced version, on a broker for each API."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.corpus.exchanges.registry import SCRIPTS
from tests.corpus.exchanges.scripts import FAMILIES
from tests.corpus.exchanges.session import Stage

assert FAMILIES  # the import registers their scripts


def announced(home: Path) -> dict[str, tuple[int, int]]:
    """Return first and last version of each API that a broker announces, by the API's name."""
    found: dict[str, tuple[int, int]] = {}
    with Stage(home) as stage:
        found |= {name: (first, last) for name, first, last in stage.names()}
    return found


def play_apis(home: Path, served: Mapping[str, tuple[int, int]]) -> Iterator[tuple[str, Stage]]:
    """Play each API in all its versions; yield the closed stages."""
    for api, (first, last) in sorted(served.items()):
        script = SCRIPTS[api]
        with Stage(home / api, script.settings) as stage:
            script.prepare(stage)
            for version in range(first, last + 1):
                stage.chapter(f"v{version:02}")
                script.play(stage, version)
                stage.torn(api, version)
        yield api, stage
