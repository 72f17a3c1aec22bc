"""Generational compaction: clean the segments with the most garbage per byte to move.

docs/generations.md describes the model, its cost and its proofs.
"""

from tidelog.storage.compaction.generations.estimates import SegmentFacts
from tidelog.storage.compaction.generations.planning import Decision, Demand, GenerationPlan
from tidelog.storage.compaction.generations.scheduler import Generations
from tidelog.storage.compaction.generations.statistics import STATISTICS_FILE
