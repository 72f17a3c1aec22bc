"""Each API as several identities ask it: with all rights, with few, with none."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.corpus.exchanges.identities import AUTHORIZER, PASSWORD, USERS, listeners, logged_in
from tests.corpus.exchanges.line import Stopped
from tests.corpus.exchanges.registry import FLIGHTS, SCRIPTS, Script
from tests.corpus.exchanges.scripts.cluster import (
    CLUSTER,
    DESCRIBE,
    GROUP,
    READ,
    TOPIC,
    rule,
)
from tests.corpus.exchanges.session import Stage
from tests.corpus.exchanges.values import Tree, Value

ALL = 2
TRANSACTIONAL_ID = 5
# Log-ins need nobody's rights: the session `log_ins` has them.
WITHOUT_RIGHTS = {"sasl_handshake", "sasl_authenticate"}


def settings(folder: Path) -> Mapping[str, str]:
    """A broker where users of PLAIN log in, and an authorizer asks who may do what."""
    folder.mkdir(parents=True, exist_ok=True)
    users = folder / "users"
    users.write_text("".join(f"{name}={PASSWORD}\n" for name in USERS))
    return {
        **listeners("PLAINTEXT", "SASL_PLAINTEXT"),
        "sasl.enabled.mechanisms": "PLAIN",
        "tidelog.sasl.plain.users.file": str(users),
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS",
    }


def rules() -> list[Value]:
    """Alice may do everything by rules; a reader may describe and read, on two kinds of names."""
    kinds = {TOPIC: "*", GROUP: "*", CLUSTER: "kafka-cluster", TRANSACTIONAL_ID: "*"}
    every: list[Value] = [rule(name, kind, operation=ALL) for kind, name in kinds.items()]
    reader: list[Value] = [
        rule(FLIGHTS, TOPIC, operation=READ, principal="User:reader"),
        rule("*", GROUP, operation=READ, principal="User:reader"),
        rule("*", TRANSACTIONAL_ID, operation=DESCRIBE, principal="User:reader"),
    ]
    return [*every, *reader]


def play(home: Path, announced: Mapping[str, tuple[int, int]]) -> Iterator[Stage]:
    """Ask each API's first normal request in its last version, as each identity."""
    for api, (_, last) in sorted(announced.items()):
        if api not in WITHOUT_RIGHTS:
            yield _asked(home / api, api, last)


def _asked(home: Path, api: str, version: int) -> Stage:
    script = SCRIPTS[api]
    with Stage(home / "data", {**script.settings, **settings(home)}) as stage:
        stage.main.quiet("create_acls", 3, {"creations": rules()})
        script.prepare(stage)
        tree = _first_normal(stage, script, version)
        stage.chapters.clear()
        stage.chapter(api)
        for user in reversed(USERS):
            line = logged_in(stage.line(user, "SASL_PLAINTEXT"), user)
            line.ask(api, version, tree, f"as {user}")
    return stage


def _first_normal(stage: Stage, script: Script, version: int) -> Tree:
    stage.stops = True
    try:
        script.play(stage, version)
    except Stopped as stopped:
        return stopped.tree
    raise AssertionError("a script without a normal request")
