"""Archives of directories, and the fixed path at which an archive is used.

The path is fixed because some files contain the path of their directory.
"""

import fcntl
import io
import lzma
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
# A tier record contains the path of its store. `PLACE` is a symbolic link to the folder of the
# archive in use, so the path in the record is the same in every run.
PLACE: Final = Path("/tmp/tidelog-corpus-before")
_SUFFIX: Final = ".tar.xz"
# File with the time, by the stopped clock of `tests/corpus/still.py`, at which the directory was
# finished.
NOW_FILE: Final = "now-ms"


def names() -> list[str]:
    """Return the names of the kept directories."""
    return sorted(path.name.removesuffix(_SUFFIX) for path in HERE.glob(f"*{_SUFFIX}"))


def commit() -> str:
    """Return the commit whose code has created the directories."""
    return (HERE / "COMMIT").read_text().split()[0]


def pack(folder: Path, name: str) -> None:
    """Archive the files below a folder, without sockets."""
    raw, now_s = io.BytesIO(), int((folder / NOW_FILE).read_text()) // 1000

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mode = 0o700 if info.isdir() else 0o600
        info.mtime = min(int(info.mtime), now_s)
        return info

    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            is_kept = not path.relative_to(folder).parts[0].startswith(".")
            if is_kept and (path.is_file() or path.is_dir()):
                tar.add(path, str(path.relative_to(folder)), recursive=False, filter=plain)
    (HERE / f"{name}{_SUFFIX}").write_bytes(lzma.compress(raw.getvalue(), preset=9))


def unpack(name: str, folder: Path) -> None:
    """Extract a kept directory."""
    folder.mkdir()
    raw = io.BytesIO(lzma.decompress((HERE / f"{name}{_SUFFIX}").read_bytes()))
    with tarfile.open(fileobj=raw) as tar:
        tar.extractall(folder, filter="data")


@contextmanager
def placed(folder: Path) -> Iterator[None]:
    """Link `PLACE` to a folder; other processes that need `PLACE` wait."""
    with PLACE.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        PLACE.unlink(missing_ok=True)
        PLACE.symlink_to(folder)
        try:
            yield
        finally:
            PLACE.unlink()
