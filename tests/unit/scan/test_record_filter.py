"""Conditions on records: exact numbers of any size, and hostile values."""

import pytest

from tidelog.scan.record_filter import FieldMatch

LONG = "9" * 5_000  # Python parses no integer of more than 4300 digits
HUGE = "1e9999999999999999999999"  # Python's `Decimal` parses no exponent with so many digits


@pytest.mark.parametrize(
    ("condition", "value", "expected"),
    [
        ("n=15", '{"n": 15.0}', True),
        ("n=0", '{"n": -0.0}', True),
        ("n=true", '{"n": 1}', False),
        ("n=15", '{"n": "15"}', True),
        ("n=null", '{"n": null}', True),
        ("a.1.b=x", '{"a": [0, {"b": "x"}]}', True),
        ("n=12345678901234567890", '{"n": 12345678901234567891}', False),
        (f"n={LONG}", f'{{"n": {LONG}}}', True),
        ("a=x", f'{{"n": {LONG}, "a": "x"}}', True),
        ("n=5", f'{{"n": {HUGE}}}', False),
        ("a=x", f'{{"n": {HUGE}, "a": "x"}}', True),
        (f"n={HUGE}", '{"n": 5}', False),
        (f"n={HUGE}", f'{{"n": "{HUGE}"}}', True),
        ("n=5", '{"n": NaN}', False),
    ],
)
def test_a_field_matches(condition: str, value: str, expected: bool) -> None:
    assert FieldMatch.parse(condition).is_met(value.encode()) is expected
