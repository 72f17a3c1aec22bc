"""Garbage collection is rare while `tidelog serve` runs; afterwards the thresholds are restored."""

import gc

from tidelog.cli.serve import GARBAGE_THRESHOLDS, infrequent_garbage_collection


def test_thresholds_are_changed_only_in_the_block() -> None:
    before = gc.get_threshold()
    with infrequent_garbage_collection():
        assert gc.get_threshold() == GARBAGE_THRESHOLDS
    assert gc.get_threshold() == before
