"""Generational compaction: clean what has the most garbage for the bytes that have to move.

docs/generations.md has the model, what it costs, and what is proven of which segment.
"""

from tidelog.storage.compaction.generations.estimates import SegmentFacts
from tidelog.storage.compaction.generations.planning import Decision, Demand, GenerationPlan
from tidelog.storage.compaction.generations.scheduler import Generations
from tidelog.storage.compaction.generations.statistics import STATISTICS_FILE

__all__ = [
    "STATISTICS_FILE",
    "Decision",
    "Demand",
    "GenerationPlan",
    "Generations",
    "SegmentFacts",
]
