"""Files as text: size, digest, content of small files, and the output of `tidelog dump`."""

import contextlib
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.corpus.shell import escaped, run

_HEX_MAX_BYTES: Final = 64
_TEXT_MAX_BYTES: Final = 4096
# Checksum of a tier record, which contains a local path as the store's URL.
_CHECKSUM: Final = re.compile(rb'("crc32c": )[0-9]+')
_DUMPED: Final = (
    *(".log", ".index", ".timeindex", ".txnindex", ".snapshot", ".appendtime", ".zones"),
    *("-checkpoint", "segment-notes", "deletion-history"),
)


def contents(root: Path, *folders: str) -> dict[str, bytes]:
    """Return the bytes of the files below a directory, by path; only of `folders` if given."""
    tops = [root / folder for folder in folders] or [root]
    found = [path for top in tops for path in top.rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def masked(files: Mapping[str, bytes], home: Path) -> dict[str, bytes]:
    """Return the files; the path of `home` and checksums that depend on this path are masked."""
    return {path: _masked(data, str(home).encode()) for path, data in files.items()}


def _masked(data: bytes, home: bytes) -> bytes:
    if home not in data:
        return data
    return _CHECKSUM.sub(rb"\1(masked)", data.replace(home, b"HOME"))


def listed(files: Mapping[str, bytes]) -> list[str]:
    """Return lines for each file: path, size and digest, then the content if the file is small."""
    lines: list[str] = []
    for path, data in sorted(files.items()):
        lines.append(f"{path}: {len(data)} bytes {hashlib.sha256(data).hexdigest()[:32]}")
        text = _text(data)
        if text is not None:
            lines += [f"    | {escaped(line)}" for line in text.splitlines()]
        elif len(data) <= _HEX_MAX_BYTES:
            lines += [f"    {data[at : at + 32].hex()}" for at in range(0, len(data), 32)]
    return lines


def _text(data: bytes) -> str | None:
    if not data or len(data) > _TEXT_MAX_BYTES:
        return None
    with contextlib.suppress(UnicodeDecodeError):
        text = data.decode()
        if all(c.isprintable() or c == "\n" for c in text):
            return text
    return None


def dumped(files: Mapping[str, bytes], folder: Path) -> list[str]:
    """Return the outputs of `tidelog dump --deep` for each file, one after the other."""
    lines: list[str] = []
    _write(files, folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        for path, data in sorted(files.items()):
            if path.endswith(_DUMPED) and data:
                lines += [f"-- {path}", *run("dump", path, "--deep", "-o", "csv").lines()]
    finally:
        os.chdir(before)
    return lines


def _write(files: Mapping[str, bytes], folder: Path) -> None:
    for path, data in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
