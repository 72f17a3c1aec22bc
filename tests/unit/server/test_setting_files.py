"""Files of broker settings: properties as Java reads them, and TOML."""

import pytest

from tidelog.config.files import read_settings, setting_texts
from tidelog.errors import ConfigError

PROPERTIES = r"""
# a comment
! another one
node.id = 3
log.retention.hours:24
num.partitions   4
listeners=PLAINTEXT://\
   127.0.0.1:9092
empty=
"""


def properties(content: str | bytes) -> dict[str, str]:
    """Return the settings in a file."""
    raw = content if isinstance(content, bytes) else content.encode()
    return read_settings("server.properties", raw).texts


def test_properties() -> None:
    assert properties(PROPERTIES) == {
        "node.id": "3",
        "log.retention.hours": "24",
        "num.partitions": "4",
        "listeners": "PLAINTEXT://127.0.0.1:9092",
        "empty": "",
    }


def test_the_repr_of_a_settings_file_shows_no_value() -> None:
    content = b"ssl.keystore.password=open sesame\n"
    assert "sesame" not in repr(read_settings("server.properties", content))


def test_lines_are_known() -> None:
    found = read_settings("server.properties", PROPERTIES.encode())
    assert found.lines == {
        "node.id": 4,
        "log.retention.hours": 5,
        "num.partitions": 6,
        "listeners": 7,
        "empty": 9,
    }
    assert found.location_of("listeners") == "server.properties:7"
    assert found.location_of("log.dirs") == "server.properties"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (r"a=C:\\data", r"C:\data"),
        (r"a=\u00e9\ud83d\ude00", "\u00e9\U0001f600"),
        (r"a = x\ty ", "x\ty"),
        (r"a=ends with one\\", "ends with one\\"),
        ("a=\u00a0x\u2028y", "\u00a0x\u2028y"),
    ],
)
def test_backslashes_and_spaces_are_javas(line: str, value: str) -> None:
    assert properties(line) == {"a": value}


def test_a_backslash_keeps_a_separator_in_the_name() -> None:
    assert properties(r"a\=b\:c\ d = 1") == {"a=b:c d": "1"}


def test_bytes_that_are_not_utf_8_are_latin_1() -> None:
    assert properties(b"# kr\xe9\nbroker.rack=kr\xe9\x85\n") == {"broker.rack": "kr\xe9\x85"}
    assert properties("broker.rack=kr\u00e9") == {"broker.rack": "kr\u00e9"}


def test_a_byte_order_mark_is_skipped() -> None:
    assert properties(b"\xef\xbb\xbfnode.id=3") == {"node.id": "3"}
    assert read_settings("a.toml", b"\xef\xbb\xbfnum.partitions = 3").texts == {
        "num.partitions": "3"
    }


@pytest.mark.parametrize(
    ("content", "told"),
    [("a=1\n=3", ":2: the setting has no name"), (r"a=\u12", r":1: \u must be followed")],
)
def test_invalid_properties_are_refused(content: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        properties(content)
    assert str(caught.value).startswith(f"server.properties{told}")


def test_toml_with_tables_and_dotted_names() -> None:
    text = b'num.partitions = 4\n"node.id" = 3\n[auto.create.topics]\nenable = false\n'
    assert read_settings("broker.toml", text).texts == {
        "num.partitions": "4",
        "node.id": "3",
        "auto.create.topics.enable": "false",
    }


@pytest.mark.parametrize(
    "text", [b"a = ", b"a = 1979-05-27", b"a = [[1]]", b"a = [{b = 1}]", b"a = '\xe9'"]
)
def test_invalid_toml_is_an_error_with_the_files_name(text: bytes) -> None:
    with pytest.raises(ConfigError, match=r"^broker\.toml"):
        read_settings("broker.toml", text)


def test_values_of_python_are_those_of_toml() -> None:
    given = {"num.partitions": 3, "auto.create.topics.enable": False, "log": {"dirs": ["a"]}}
    assert setting_texts(given) == {
        "num.partitions": "3",
        "auto.create.topics.enable": "false",
        "log.dirs": "a",
    }


@pytest.mark.parametrize("value", [None, b"3", object()])
def test_a_value_that_is_none(value: object) -> None:
    with pytest.raises(ConfigError, match=r"^num\.partitions: must be a text, a number"):
        setting_texts({"num.partitions": value})
