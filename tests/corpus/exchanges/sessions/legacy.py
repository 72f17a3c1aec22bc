"""Old clients: API versions that `tidelog.legacy.clients` serves, and records in old formats."""

from pathlib import Path

from tests.corpus.exchanges.batches import batch, old_set
from tests.corpus.exchanges.registry import SCRIPTS, append, flights
from tests.corpus.exchanges.scripts.records import fetched, produced, searched
from tests.corpus.exchanges.session import NOW_MS, Stage

SETTINGS = {"tidelog.legacy.clients": "true"}
# The old versions of each API.
OLD = {"produce": range(3), "fetch": range(4), "list_offsets": range(1)}


def play(home: Path) -> Stage:
    """Use old versions, then read old records in new versions and new records in old versions."""
    with Stage(home, SETTINGS, is_measured=True) as stage:
        stage.chapter("announced")
        asked = {"client_software_name": "old", "client_software_version": "1"}
        stage.main.ask("api_versions", 3, {**asked})
        flights(stage)
        for api, versions in OLD.items():
            for version in versions:
                stage.chapter(f"{api}-v{version}")
                SCRIPTS[api].play(stage, version)
                stage.torn(api, version)
        _mixed(stage)
    return stage


def _mixed(stage: Stage) -> None:
    stage.chapter("mixed")
    stage.create_topic("mixed", 1)
    main = stage.main
    pairs = [(b"k0", b"v0"), (None, b"v1"), (b"k2", None)]
    main.ask("produce", 0, produced(stage, old_set(0, pairs, 0), "mixed"))
    main.ask("produce", 2, produced(stage, old_set(1, pairs, NOW_MS), "mixed"))
    main.ask("produce", 1, produced(stage, old_set(1, pairs, NOW_MS), "mixed"), "of format 1")
    main.ask("produce", 3, produced(stage, old_set(1, pairs, NOW_MS), "mixed"), "in version 3")
    broken = old_set(1, pairs, NOW_MS)[:-1] + b"!"
    main.ask("produce", 2, produced(stage, broken, "mixed"), "with a wrong checksum")
    append(stage, "mixed", batch(NOW_MS + 10, [b"new", b"newer"]))
    append(stage, "mixed", batch(NOW_MS + 20, [b"zipped"] * 3, attributes=1))
    for version in (0, 1, 2, 3, 4, 12):
        main.ask("fetch", version, fetched(stage, 0, "mixed"))
        main.ask("fetch", version, fetched(stage, 4, "mixed"))
        main.ask("fetch", version, fetched(stage, 7, "mixed", largest=40))
    for time in (-1, -2, 0, NOW_MS + 1, NOW_MS + 11, NOW_MS + 99):
        for version in (0, 1, 7):
            main.ask("list_offsets", version, searched(time, topic="mixed"))
