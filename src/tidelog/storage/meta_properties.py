"""`meta.properties`, which says whose log directory this is: a Java properties file.

Version 1 has `cluster.id`, `node.id` and mostly `directory.id`; version 0 had `broker.id`.

Source: Kafka 4.x MetaProperties; docs/format.md#text-files.
"""

import posixpath
import re
from collections.abc import Mapping
from typing import Final

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile
from tidelog.storage.files import read_file, write_atomically
from tidelog.storage.text_files import decode_text
from tidelog.types import Buffer

META_PROPERTIES_FILE: Final = "meta.properties"


def encode_meta_properties(properties: Mapping[str, str]) -> bytes:
    """The text of `meta.properties`: a `key=value` line each, keys sorted.

    Kafka writes the date above the lines; nobody reads it, so ours stands without.
    """
    lines = [f"{key}={_escape(value)}" for key, value in sorted(properties.items())]
    return ("#\n" + "".join(f"{line}\n" for line in lines)).encode()


def decode_meta_properties(data: Buffer) -> dict[str, str]:
    """The settings in a `meta.properties`; raises CorruptFile for a line without `=` or `:`."""
    properties = {}
    for line in decode_text(data).splitlines():
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        found = re.fullmatch(r"([^=:\s]+)\s*[=:]\s*(.*)", text)
        if found is None:
            raise CorruptFile(f"line {text[:80]!r}: 'key=value' expected")
        properties[found[1]] = re.sub(r"\\(.)", r"\1", found[2])
    return properties


def read_meta_properties(files: FileSystem, directory: str) -> dict[str, str] | None:
    """The settings of a log directory, None where it has no `meta.properties`."""
    path = posixpath.join(directory, META_PROPERTIES_FILE)
    try:
        return decode_meta_properties(read_file(files, path))
    except FileNotFoundError:
        return None
    except CorruptFile as error:
        raise error.located(path) from error


def write_meta_properties(files: FileSystem, directory: str, properties: Mapping[str, str]) -> None:
    """Write a log directory's `meta.properties` atomically."""
    path = posixpath.join(directory, META_PROPERTIES_FILE)
    write_atomically(files, path, encode_meta_properties(properties))


def _escape(value: str) -> str:
    return re.sub(r"([\\=:#!])", r"\\\1", value)
