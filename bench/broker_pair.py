"""What the parts of the broker's benchmark share: both brokers, how much is done, a case's form."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Final

from bench.broker_servers import Served, Topics
from bench.harness import Case, Work

RIVAL: Final = "Apache Kafka 4.3.0"


@dataclass(frozen=True, slots=True)
class Size:
    """How much is done: less of everything with `--quick`."""

    volume_bytes: int
    warm_up_s: float
    paced: int
    single: int
    lookups: int
    lookup_requests: int
    lookup_batches: int
    client_records: int
    memory_runs: int


FULL: Final = Size(256_000_000, 45, 5_000, 3_000, 1_000, 6_000, 4_000, 3_000_000, 4)
QUICK: Final = Size(32_000_000, 6, 700, 400, 200, 1_000, 400, 100_000, 1)


@dataclass(frozen=True, slots=True)
class Pair:
    """Both brokers, running, each with its admin client; ours first."""

    ours: Served
    rival: Served
    our_topics: Topics
    rival_topics: Topics

    def topics(self, server: Served) -> Topics:
        """Of one of them."""
        return self.our_topics if server is self.ours else self.rival_topics

    def servers(self) -> Sequence[Served]:
        """Both."""
        return (self.ours, self.rival)


def nothing() -> None:
    """A case with a `prepare` is called once per round."""


def figure(
    case: str, unit: str, ours: Work, rival: Work | None, *, goal: str = "", note: str = ""
) -> Case:
    """A case whose callables say the figure themselves."""
    return Case(
        case=case,
        unit=unit,
        ours=ours,
        rival=rival,
        rival_name=RIVAL if rival else "",
        goal=goal,
        note=note,
        prepare=nothing,
    )


def at(seconds: Sequence[float], percentile: int) -> float:
    """A percentile, in ms."""
    return quantiles(seconds, n=100)[percentile - 1] * 1e3
