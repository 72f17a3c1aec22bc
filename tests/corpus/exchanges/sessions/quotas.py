"""Clients over their quotas: the broker mutes them until the clock has been advanced."""

from pathlib import Path

from tests.corpus.exchanges.batches import batch
from tests.corpus.exchanges.line import Line
from tests.corpus.exchanges.registry import FLIGHTS, flights
from tests.corpus.exchanges.scripts.configs import quota
from tests.corpus.exchanges.scripts.records import fetched, produced
from tests.corpus.exchanges.session import NOW_MS, Stage
from tests.corpus.exchanges.values import Tree, number

TOPIC: Tree = {"topics": [{"name": FLIGHTS}]}


def play(home: Path) -> Stage:
    """Exceed each kind of quota."""
    with Stage(home, is_measured=True) as stage:
        flights(stage)
        _produced(stage)
        _fetched(stage)
        _changed(stage)
    return stage


def _silent(stage: Stage, line: Line, answer: Tree) -> None:
    """The next request of a client over its quota gets its response after the throttle time."""
    wait_ms = number(answer, "throttle_time")
    line.send("metadata", 9, TOPIC, "while the broker is silent")
    stage.line("others").ask("metadata", 9, TOPIC, "others are answered")
    stage.settle()
    line.note_silence()
    stage.advance(wait_ms)
    line.receive()


def _produced(stage: Stage) -> None:
    stage.chapter("produced")
    given = quota(("client-id", "writer"), producer_byte_rate=100.0)
    stage.main.ask("alter_client_quotas", 1, given)
    line = stage.line("writer")
    large = batch(NOW_MS, [b"x" * 900])
    for _ in range(2):
        answer = line.ask("produce", 9, produced(stage, large))
        if number(answer, "throttle_time"):
            _silent(stage, line, answer)
    stage.advance(20_000)
    line.ask("produce", 9, produced(stage, large), "when that is forgotten")


def _fetched(stage: Stage) -> None:
    stage.chapter("fetched")
    stage.main.ask("alter_client_quotas", 1, quota(("client-id", None), consumer_byte_rate=50.0))
    line = stage.line("fetcher")
    for _ in range(3):
        answer = line.ask("fetch", 12, fetched(stage, 0))
        if number(answer, "throttle_time"):
            _silent(stage, line, answer)
    stage.advance(60_000)
    line.ask("fetch", 12, fetched(stage, 0), "when that is forgotten")


def _changed(stage: Stage) -> None:
    stage.chapter("changed")
    gone = quota(("client-id", "writer"), producer_byte_rate=None)
    stage.main.ask("alter_client_quotas", 1, gone)
    line = stage.line("writer")
    large = batch(NOW_MS, [b"x" * 9000])
    line.ask("produce", 9, produced(stage, large), "without a quota")
    stage.main.ask(
        "alter_client_quotas", 1, quota(("user", "ANONYMOUS"), producer_byte_rate=1000.0)
    )
    line.ask("produce", 9, produced(stage, large), "up to the user's quota")
    answer = line.ask("produce", 9, produced(stage, large), "over the user's quota")
    _silent(stage, line, answer)
