"""Space and writes of generational compaction in the model, for any drawn sample.

The logs are small and the seeds fixed; `./run bench compaction` produces the published figures.
"""

import pytest
from bench.generations_model import (
    ModelLog,
    Sampling,
    Workload,
    brute_force,
)
from bench.generations_yields import SamplingWithYields, by_yields

SHIFT = 3
KINDS = ("uniform", "zipf")


@pytest.mark.parametrize("draw", range(6))
@pytest.mark.parametrize("kind", KINDS)
def test_the_log_never_exceeds_its_bound(kind: str, draw: int) -> None:
    """One key in eight is sampled, so the standard error of the estimated live size is 2.9 %."""
    work = Workload(kind=kind, keys=8192, segments=32, rounds=5, seed=draw)
    found = ModelLog(work).run(Sampling(SHIFT, seed=draw))
    assert 0.97 <= found.peak <= 1.0
    assert found.segments_peak <= 8


def test_uniform_updates_write_a_fraction_of_brute_force() -> None:
    work = Workload(kind="uniform", keys=16384, segments=32, rounds=12)
    brute = ModelLog(work).run(brute_force)
    found = ModelLog(work).run(Sampling(2))
    assert found.written <= 0.45 * brute.written


@pytest.mark.parametrize("kind", KINDS)
def test_yields_of_earlier_cleanings_make_the_estimate_no_better(kind: str) -> None:
    """Compared with samples, yields save no writes, and yields with samples save at most 2 %.

    With yields alone, the model is even given the exact live size of the whole log.
    """
    work = Workload(kind=kind, keys=8192, segments=32, rounds=8)
    sampled = ModelLog(work).run(Sampling(SHIFT)).written
    assert sampled <= ModelLog(work).run(by_yields()).written
    assert sampled <= ModelLog(work).run(SamplingWithYields(SHIFT)).written * 1.02
