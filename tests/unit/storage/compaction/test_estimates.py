"""A cleaning's count of keys corrects the number of keys that a sample estimates."""

import math
from random import Random

import pytest

from tidelog.storage.compaction.generations.estimates import (
    KeySamples,
    MappedKeys,
    better,
    correction,
    count_error,
    live_error,
)

SHIFT = 3


def _samples(hashes: range, size: int = 100) -> KeySamples:
    """Return samples of keys at offsets 0, 1, ..., with `hashes` shifted left by SHIFT bits."""
    return KeySamples(SHIFT, {h << SHIFT: (at, size) for at, h in enumerate(hashes)})


def test_a_map_of_all_keys_leaves_nothing_uncertain() -> None:
    samples = _samples(range(100))
    counted = MappedKeys(shift=SHIFT, keys=777, sampled=100)
    assert correction(samples, counted) == pytest.approx(777 / 800)
    assert live_error(samples, counted) == 0.0


def test_without_a_count_the_error_is_that_of_the_sample() -> None:
    samples = _samples(range(100))
    assert correction(samples, None) == 1.0
    assert live_error(samples, None) == pytest.approx(math.sqrt((1 - 1 / 8) / 100))


def test_every_key_in_the_sample_is_no_estimate() -> None:
    samples = KeySamples(0, {h: (h, h + 1) for h in range(50)})
    assert live_error(samples, None) == 0.0


def test_without_samples_no_correction_is_made() -> None:
    assert live_error(KeySamples(SHIFT), None) == 1.0
    assert count_error(KeySamples(SHIFT), None) == 0.0
    assert correction(KeySamples(SHIFT), MappedKeys(shift=SHIFT, keys=5, sampled=0)) == 1.0


def test_keys_that_were_not_mapped_are_as_uncertain_as_before() -> None:
    """The count covers 56 of 100 sampled keys; it is 23 less than the estimate 56 * 8."""
    samples, counted = _samples(range(100)), MappedKeys(shift=SHIFT, keys=425, sampled=56)
    assert correction(samples, counted) == pytest.approx((425 + 44 * 8) / 800)
    assert live_error(samples, counted) == pytest.approx(math.sqrt(7 / 8 * 44) / 100)


def test_lost_keys_reduce_the_certainty_of_the_count() -> None:
    """A lost key may have been in the map; a new key may have taken its place in the sample."""
    counted = MappedKeys(shift=SHIFT, keys=777, sampled=100, lost=3)
    assert counted.unknown(_samples(range(100))) == 6
    assert counted.unknown(_samples(range(97))) == 6


def test_a_count_of_another_sample_is_ignored() -> None:
    samples, counted = _samples(range(100)), MappedKeys(shift=SHIFT - 1, keys=1, sampled=200)
    assert correction(samples, counted) == 1.0
    assert live_error(samples, counted) == live_error(samples, None)


def test_records_of_different_sizes_leave_their_mean_uncertain() -> None:
    """Every second record is three times as large as the others, so the variance is mean^2 / 4."""
    sizes = {h << SHIFT: (h, 100 if h % 2 else -300) for h in range(100)}
    samples = KeySamples(SHIFT, sizes)
    counted = MappedKeys(shift=SHIFT, keys=800, sampled=100)
    assert live_error(samples, counted) == pytest.approx(math.sqrt(7 / 8 * 0.25 / 100))
    assert count_error(samples, counted) == 0.0
    assert live_error(samples, None) == pytest.approx(math.sqrt(7 / 8 * 1.25 / 100))
    assert count_error(samples, None) == pytest.approx(math.sqrt(7 / 8 / 100))


def test_the_count_that_leaves_less_uncertain_is_kept() -> None:
    samples = _samples(range(100))
    whole = MappedKeys(shift=SHIFT, keys=777, sampled=100)
    part = MappedKeys(shift=SHIFT, keys=425, sampled=56)
    assert better(None, part, samples) is part
    assert better(whole, part, samples) is whole
    assert better(part, whole, samples) is whole
    newer = MappedKeys(shift=SHIFT, keys=778, sampled=100)
    assert better(whole, newer, samples) is newer


def test_the_stated_error_equals_the_real_one() -> None:
    """Draw 300 samples from 4,096 keys; three quarters of the keys were mapped."""
    dice, keys, mapped = Random(7), 4096, 3072
    errors, stated = [], 0.0
    for _ in range(300):
        drawn = [key for key in range(keys) if dice.getrandbits(SHIFT) == 0]
        samples = KeySamples(SHIFT, {key << SHIFT: (key, 100) for key in drawn})
        counted = MappedKeys(shift=SHIFT, keys=mapped, sampled=samples.count_between(0, mapped))
        found = (len(samples) << SHIFT) * correction(samples, counted)
        errors.append(found / keys - 1)
        stated = live_error(samples, counted)
    made = math.sqrt(sum(error * error for error in errors) / len(errors))
    assert made == pytest.approx(stated, rel=0.2)


def test_sizes_that_hardly_differ_have_no_variance_below_zero() -> None:
    sizes = {h << SHIFT: (h, 4_791_286) for h in range(300)} | {300 << SHIFT: (300, 4_791_287)}
    samples = KeySamples(SHIFT, sizes)
    counted = MappedKeys(shift=SHIFT, keys=2408, sampled=301)
    assert 0 < samples.size_variance() < 1e-15
    assert 0 < live_error(samples, counted) < 1e-8
