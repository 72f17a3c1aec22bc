"""`meta.properties`: the format of Java properties, as Kafka writes it."""

from pathlib import Path

import pytest

from tidelog.env import OsFileSystem
from tidelog.errors import CorruptFile
from tidelog.storage.text_files import (
    decode_meta_properties,
    encode_meta_properties,
    read_meta_properties,
    write_meta_properties,
)

PROPERTIES = {"version": "1", "node.id": "1", "cluster.id": "JgxuGe9URy-E-ceaL04lEw"}


def test_settings_are_lines_sorted_by_key() -> None:
    text = b"#\ncluster.id=JgxuGe9URy-E-ceaL04lEw\nnode.id=1\nversion=1\n"
    assert encode_meta_properties(PROPERTIES) == text
    assert decode_meta_properties(text) == PROPERTIES


def test_properties_written_by_kafka_are_read() -> None:
    text = b"#\n#Sat Nov 21 09:00:00 UTC 2026\n! note\n\n  a.b = x y\nc:1\nd=http\\://h\\=1\ne=\n"
    expected = {"a.b": "x y", "c": "1", "d": "http://h=1", "e": ""}
    assert decode_meta_properties(text) == expected


@pytest.mark.parametrize("value", ["a:b=c", "#!\\", "\\\\", "plain"])
def test_special_characters_are_read_back(value: str) -> None:
    assert decode_meta_properties(encode_meta_properties({"k": value})) == {"k": value}


def test_a_line_without_a_separator_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "meta.properties").write_bytes(b"version\n")
    with pytest.raises(CorruptFile, match="key=value") as caught:
        read_meta_properties(OsFileSystem(), str(tmp_path))
    assert caught.value.path == str(tmp_path / "meta.properties")


def test_a_missing_file_is_none_and_a_written_one_is_read_back(tmp_path: Path) -> None:
    system = OsFileSystem()
    assert read_meta_properties(system, str(tmp_path)) is None
    write_meta_properties(system, str(tmp_path), PROPERTIES)
    assert read_meta_properties(system, str(tmp_path)) == PROPERTIES
