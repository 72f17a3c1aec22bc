"""Creates the directories with stopped clocks, each in its own folder with its topics in `data`.

| directory | content |
|---|---|
| log | topics of all kinds, see `tests.corpus.logs`; both clocks, late records, groups |
| compacted | a topic compacted by offset, with tombstones; another by timestamp |
| tiered | segments in a store (`store`), without local copies |
| transactional | committed and aborted transactions, an open one, and offsets of groups |
| secured | users of SCRAM, ACLs, quotas |
| standby | `data` follows `leader` |
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.corpus import logs, still
from tests.corpus.before.archives import NOW_FILE, PLACE
from tests.corpus.disk import commanded, served
from tests.corpus.disk.calls import watched
from tests.corpus.disk.library import MINUTE_MS, Notes
from tests.corpus.exchanges.batches import batch
from tests.corpus.exchanges.identities import AUTHORIZER, listeners
from tests.corpus.exchanges.registry import append
from tests.corpus.exchanges.scripts.cluster import GROUP, READ, TOPIC, acl
from tests.corpus.exchanges.scripts.configs import SHA_512, quota, upsertion
from tests.corpus.exchanges.session import NOW_MS, Stage
from tests.corpus.shell import run

import tidelog
from tidelog import NewRecord

if TYPE_CHECKING:
    from tests.corpus.exchanges.values import Value

SECURED: Final[Mapping[str, str]] = {
    **served.SETTINGS,
    **listeners("PLAINTEXT", "SASL_PLAINTEXT"),
    "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
    "authorizer.class.name": AUTHORIZER,
    "super.users": "User:ANONYMOUS",
}


def make(name: str, folder: Path) -> None:
    """Create a directory in a new folder."""
    still.draw_for(f"before {name}")
    still.set_time(still.START_MS)
    folder.mkdir()
    os.chdir(folder)
    with watched(folder):  # sets the files' times to the time of the stopped clock
        MAKERS[name](folder)
    (folder / NOW_FILE).write_text(f"{still.now_ms()}\n")


def _log(folder: Path) -> None:
    logs.make(folder / "data")
    still.advance(MINUTE_MS)


def _compacted(folder: Path) -> None:
    commanded.compact(folder, Notes())


def _tiered(folder: Path) -> None:
    config = {"internal.segment.bytes": "700", "remote.storage.enable": "true"}
    (folder / "store").mkdir()
    with tidelog.open("data", writable=True) as directory:
        directory.create_topic("t", partitions=2, config={**config, "local.retention.bytes": "900"})
        for turn in range(12):
            still.advance(10 * MINUTE_MS)
            rows = [
                NewRecord(key=b"k%d" % n, value=b"%d " % turn * 12, timestamp=still.now_ms() - n)
                for n in range(9)
            ]
            directory.append("t", rows, codec="zstd" if turn % 3 else "none")
    ran = run("tier", "t", "--to", f"file://{PLACE}/store", "--data", "data")
    assert ran.code == 0, ran


def _transactional(folder: Path) -> None:
    still.set_time(NOW_MS)
    with Stage(folder / "data", served.SETTINGS) as stage:
        stage.chapter("made")
        served.transactions(stage)
        still.set_time(stage.clock.now_ms())


def _secured(folder: Path) -> None:
    still.set_time(NOW_MS)
    with Stage(folder / "data", SECURED) as stage:
        stage.chapter("made")
        users: list[Value] = [upsertion("alice"), upsertion("bob", SHA_512)]
        asked = stage.main.quiet
        asked("alter_user_scram_credentials", 0, {"deletions": [], "upsertions": users})
        acls: list[Value] = [
            acl("open", TOPIC, operation=READ, principal="User:alice"),
            acl("*", GROUP, operation=READ, principal="User:alice"),
            acl("closed", TOPIC, operation=READ, principal="User:bob"),
        ]
        asked("create_acls", 3, {"creations": acls})
        asked("alter_client_quotas", 1, quota(("user", "alice"), consumer_byte_rate=1e6))
        for topic in ("open", "closed"):
            stage.create_topic(topic, 1)
            for turn in range(3):
                stage.advance(1000)
                append(stage, topic, batch(stage.clock.now_ms(), [b"%d" % turn, None]))
        still.set_time(stage.clock.now_ms())


def _standby(folder: Path) -> None:
    commanded.follow(folder, Notes())


MAKERS: Final[Mapping[str, Callable[[Path], None]]] = {
    "log": _log,
    "compacted": _compacted,
    "tiered": _tiered,
    "transactional": _transactional,
    "secured": _secured,
    "standby": _standby,
}
