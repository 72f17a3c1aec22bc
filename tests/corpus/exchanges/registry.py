"""Registry of the scripts of APIs, each of which sends the requests of one version of its API."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias

from tests.corpus.exchanges.batches import batch
from tests.corpus.exchanges.session import NOW_MS, Stage

if TYPE_CHECKING:
    from tests.corpus.exchanges.values import Tree

Play: TypeAlias = Callable[[Stage, int], None]
Prepare: TypeAlias = Callable[[Stage], None]
FLIGHTS: Final = "flights"


@dataclass(frozen=True, slots=True)
class Script:
    """An API's script: functions that prepare the broker and send the requests of a version.

    Attributes:
        play: Sends requests in one version: at least a normal request, a refused request and an
            edge case.
        prepare: Prepares the broker before the first version.
        settings: Additional settings of the broker.
    """

    play: Play
    prepare: Prepare
    settings: Mapping[str, str]


SCRIPTS: Final[dict[str, Script]] = {}


def flights(stage: Stage) -> None:
    """Create a topic of two partitions with five records in the first one."""
    stage.create_topic(FLIGHTS)
    append(stage, FLIGHTS, batch(NOW_MS - 2000))
    append(stage, FLIGHTS, batch(NOW_MS - 1000, (b"three", None, b"five")))


def append(stage: Stage, topic: str, records: bytes, partition: int = 0) -> None:
    """Append a batch; the request and its response are not recorded in the corpus."""
    part: Tree = {"index": partition, "records": records}
    produced = stage.main.quiet(
        "produce",
        9,
        {
            "acks": -1,
            "timeout": 1000,
            "topic_data": [{"name": topic, "partition_data": [part]}],
        },
    )
    assert "'error_code': 0" in str(produced), produced


def script(
    api: str, prepare: Prepare = flights, settings: Mapping[str, str] | None = None
) -> Callable[[Play], Play]:
    """Register a function as an API's script."""

    def enter(play: Play) -> Play:
        assert api not in SCRIPTS, api
        SCRIPTS[api] = Script(play, prepare, settings or {})
        return play

    return enter
