"""Requests and responses of a broker as bytes, with their meaning beside them.

Scripts call each API that the broker announces, in each version (`exchanges.scripts`), and sessions
combine several requests (`exchanges.sessions`). Only a script moves the broker's clock, and each of
the broker's random numbers is independent of other draws (`exchanges.session`).
"""

import logging
from collections.abc import Iterator
from pathlib import Path

from tests.corpus.book import Entry
from tests.corpus.exchanges.apis import announced, play_apis
from tests.corpus.exchanges.session import Stage
from tests.corpus.exchanges.sessions import (
    clocks,
    control,
    damage,
    frames,
    groups,
    legacy,
    log_ins,
    quotas,
    refusals,
    repeated,
    rights,
    times,
    transactions,
)

SESSIONS = {
    "clocks": clocks.play,
    "control": control.play,
    "damage": damage.play,
    "frames": frames.play,
    "groups": groups.play,
    "legacy": legacy.play,
    "log-ins": log_ins.play,
    "quotas": quotas.play,
    "refusals": refusals.play,
    "times": times.play,
    "transactions": transactions.play,
}


def play(home: Path) -> Iterator[Entry]:
    """Yield the entries: requests of each API, version and user, and all recorded sessions."""
    logging.getLogger("tidelog").addHandler(logging.NullHandler())
    served = announced(home / "announced")
    rows = [f"{api}: {first} to {last}" for api, (first, last) in sorted(served.items())]
    yield Entry("wire/announced/apis", "\n".join(rows))
    for api, stage in play_apis(home, served):
        yield from _entries(api, stage)
    for name, session in SESSIONS.items():
        yield from _entries(f"session-{name}", session(home / name))
    for name, stage in repeated.play(home / "repeated"):
        yield from _entries(f"session-repeated-{name}", stage)
    for stage in rights.play(home / "rights", served):
        yield from _entries("session-rights", stage)
    yield from _entries("session-rights", rights.mixed(home / "mixed"))


def _entries(page: str, stage: Stage) -> Iterator[Entry]:
    for chapter, said in stage.chapters.items():
        yield Entry(f"wire/{page}/{chapter}", "\n".join(said))
