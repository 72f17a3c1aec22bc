"""JSON is parsed and written without a change of its content."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.server.steps import steps

from tidelog.record.exact_json import COMPACT, ExactNumber, parse, text_of

TEXTS = [
    '{"price":0.1234567890123456789}',
    "[12345678901234567.25,1]",
    "1e400",
    "-1E+99999999999999999999",
    '{"a":1,"a":2}',
    '{"x":[{"a":null,"b":{"a":0.1,"a":true}}],"y":"ü\\n"}',
    '{"a":{},"a":[]}',
    f'{{"a":-1{"0" * 5000},"b":2}}',
    '{"b":1e999,"a":0}',
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_that_python_would_change_is_written_as_it_was(text: str) -> None:
    assert text_of(parse(text), separators=COMPACT) == text
    assert text_of(parse(text.encode()), separators=COMPACT) == text


def test_spaces_are_those_of_json() -> None:
    text = '{"a": [1, 0.1234567890123456789], "a": "x"}'
    assert text_of(parse(text)) == text


def test_names_are_sorted_on_request() -> None:
    text = '{"b":1e999,"a":{"d":2,"c":1,"d":1}}'
    sorted_text = '{"a":{"c":1,"d":2,"d":1},"b":1e999}'
    assert text_of(parse(text), separators=COMPACT, sort_names=True) == sorted_text
    plain = parse('{"b":1,"a":{"d":2,"c":1}}')
    assert text_of(plain, separators=COMPACT, sort_names=True) == '{"a":{"c":1,"d":2},"b":1}'


contents = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda more: st.lists(more) | st.dictionaries(st.text(), more),
)


@given(contents)
def test_other_content_is_that_of_json(content: object) -> None:
    text = json.dumps(content)
    parsed = parse(text)
    assert parsed == json.loads(text)
    assert text_of(parsed) == json.dumps(content, ensure_ascii=False)


decimals = st.decimals(allow_nan=False, allow_infinity=False).map("{:f}".format)


@given(decimals)
def test_no_digit_of_a_number_is_lost(text: str) -> None:
    from decimal import Decimal

    assert Decimal(text_of(parse(text))) == Decimal(text)


def test_an_exact_number_is_a_rounded_float() -> None:
    number = parse("0.1234567890123456789")
    assert isinstance(number, ExactNumber)
    assert number == 0.1234567890123456789
    assert repr(number) == "0.1234567890123456789"


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"a":-Infinity}', "", "[1,]"])
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse(text)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_json_lacks_are_not_written(number: float) -> None:
    for content in (number, [ExactNumber("1e999"), number]):
        with pytest.raises(ValueError, match="JSON"):
            text_of(content)


def test_other_types_are_converted_by_the_caller() -> None:
    content = [ExactNumber("1e999"), b"x"]
    assert text_of(content, default=str) == """[1e999, "b'x'"]"""
    with pytest.raises(TypeError):
        text_of(content)


@pytest.mark.parametrize("leaf", ["", "1e999"])
def test_deep_content_is_written(leaf: str) -> None:
    deep = "[" * 900 + leaf + "]" * 900
    assert text_of(parse(deep)) == deep


def test_the_depth_of_content_does_not_multiply_the_work_to_write_it() -> None:
    numbers = ",".join(["1"] * 2_000)

    def calls(depth: int) -> int:
        content = parse("[" * depth + f"{numbers},1e999" + "]" * depth)
        return steps(lambda: text_of(content))

    assert calls(800) < 2 * calls(1)


@pytest.mark.parametrize("text", ["-0", '{"a": [-0, 1, "2024-01-02"], "b": -0.0}'])
def test_the_sign_of_zero_is_kept(text: str) -> None:
    for given_text in (text, text.encode()):
        assert text_of(parse(given_text)) == text
