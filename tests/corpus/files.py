"""Files of scripted workloads: their bytes, and the calls that wrote them.

The workloads use the library, a broker or commands on a directory, with fixed time and random
numbers. Each workload is a page: its calls (`disk.calls`), its files, and the output of
`tidelog dump` for them (`disk.shown`).
"""

import logging
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.corpus import still
from tests.corpus.book import Entry
from tests.corpus.disk import commanded, library, power, served
from tests.corpus.disk.calls import Call, grouped, lines, of_journal, watched
from tests.corpus.disk.shown import contents, dumped, listed, masked
from tests.corpus.exchanges.session import NOW_MS, Stage
from tests.faults import Keep, seeded_env

import tidelog

_ROOT = "/log"
# Workloads whose calls run in several threads.
_BY_THREADS = {"asked-broker", "follow"}
# Temporary file of a tier record. The tier record contains the store's URL, which is a local path
# here.
_WITH_PATH = "tidelog-tier.json.tmp"
# The corpus keeps the calls of every n-th recovery after a power loss. This number is n.
_FULL = 20


def play(home: Path) -> Iterator[Entry]:
    """Play each workload on a disk of its own."""
    logging.getLogger("tidelog").addHandler(logging.NullHandler())
    for name, workload in library.WORKLOADS.items():
        yield from _in_memory(name, workload, home / name)
    yield from _losses()
    for name, work in commanded.WORKLOADS.items():
        yield from _on_disk(name, work, home / name)
    for name, serve in served.WORKLOADS.items():
        yield from _by_a_broker(name, serve, home / name)


def _in_memory(name: str, workload: library.Workload, folder: Path) -> Iterator[Entry]:
    still.draw_for(name)
    env, notes = seeded_env(7), library.Notes()
    with tidelog.open(_ROOT, writable=True, env=env) as directory:
        workload(directory, env.clock, notes)
    found = env.files.crash(Keep.EVERYTHING).contents()
    kept = {
        name.removeprefix(f"{_ROOT}/"): data for name, data in found.items() if data is not None
    }
    yield from _page(name, notes, lines(of_journal(env.files.journal, _ROOT)), kept, folder)


def _on_disk(name: str, workload: commanded.Workload, folder: Path) -> Iterator[Entry]:
    still.draw_for(name)
    still.set_time(still.START_MS)
    notes = library.Notes()
    folder.mkdir()
    os.chdir(folder)
    with watched(folder / "data") as calls:
        workload(folder, notes)
    calls = [_without_path(call) for call in calls]
    made = grouped(calls) if name in _BY_THREADS else lines(calls)
    files = masked(contents(folder, "data", "store"), folder)
    yield from _page(name, notes, made, files, folder.with_suffix(".copy"))
    os.chdir(folder.parent)
    shutil.rmtree(folder)


def _without_path(call: Call) -> Call:
    """Return the call; the size becomes 0 if it depends on the path, as in a tier record."""
    return call._replace(size=0) if call.path.endswith(_WITH_PATH) else call


def _by_a_broker(name: str, workload: served.Workload, folder: Path) -> Iterator[Entry]:
    still.draw_for(name)
    still.set_time(NOW_MS)
    with watched(folder) as calls, Stage(folder, served.SETTINGS) as stage:
        stage.chapter("notes")
        workload(stage)
    files = masked(contents(folder), folder)
    yield from _page(name, stage.said, grouped(calls), files, folder.with_suffix(".copy"))
    shutil.rmtree(folder)


def _page(
    name: str, notes: list[str], calls: list[str], files: dict[str, bytes], folder: Path
) -> Iterator[Entry]:
    if notes:
        yield _entry(f"{name}/notes", notes)
    yield _entry(f"{name}/calls", calls)
    yield _entry(f"{name}/files", listed(files))
    yield _entry(f"{name}/dump", dumped(files, folder))
    shutil.rmtree(folder)


def _losses() -> Iterator[Entry]:
    disk = power.disk()
    calls = [f"{number} {entry}" for number, entry in enumerate(disk.journal, 1)]
    yield _entry("power-loss/calls", calls)
    states = list(power.states(disk))
    yield _entry("power-loss/states", [power.told(name, state) for name, state in states])
    for name, state in states[::_FULL]:
        yield _entry(f"power-loss/after-{state.prefix:03d}-{name}", power.calls(state))


def _entry(name: str, found: Iterable[str]) -> Entry:
    return Entry(f"files/{name}", "\n".join(found))
