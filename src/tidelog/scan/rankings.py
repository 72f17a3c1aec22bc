"""By which rule a topic's records of one key are ranked: offset, timestamp, or a version header.

The topic's settings say it, as they do for compaction. Light: nothing is imported for it.
Source: KIP-280.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tidelog.errors import ConfigError
from tidelog.types import INT64_MIN

STRATEGY_KEY: Final = "tidelog.compaction.strategy"
HEADER_KEY: Final = "tidelog.compaction.strategy.header"
# A record without a version is older than all that have one.
MISSING_VERSION: Final = INT64_MIN


class Strategy(StrEnum):
    """What makes a record the latest of its key; of equals the highest offset is."""

    OFFSET = "offset"
    TIMESTAMP = "timestamp"
    HEADER = "header"


@dataclass(frozen=True, slots=True)
class Ranking:
    """A rule.

    Attributes:
        strategy: What decides.
        header: Name of the header that holds the version, for that strategy.
    """

    strategy: Strategy = Strategy.OFFSET
    header: str = ""


def ranking_of(settings: Mapping[str, str]) -> Ranking:
    """The rule that a topic's settings name, by Kafka's way of writing them.

    Raises:
        ConfigError: A strategy that nobody knows, or one by header without the header's name.
    """
    text = settings.get(STRATEGY_KEY) or Strategy.OFFSET
    if text not in set(Strategy):
        raise ConfigError(STRATEGY_KEY, text, f"one of {', '.join(Strategy)}")
    strategy, header = Strategy(text), settings.get(HEADER_KEY) or ""
    if strategy is Strategy.HEADER and not header:
        raise ConfigError(HEADER_KEY, header, "the name of the header that holds the version")
    return Ranking(strategy, header if strategy is Strategy.HEADER else "")
