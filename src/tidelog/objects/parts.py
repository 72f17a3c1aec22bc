"""A file in parts, for uploads with bounded memory."""

from collections.abc import Iterator
from typing import Final

from tidelog.env import FileSystem
from tidelog.errors import StorageFailure

# S3 takes parts of 5 MB up to 10,000 of them: 80 GB by these.
PART_BYTES: Final = 8 << 20


def file_parts(fs: FileSystem, path: str, size: int) -> Iterator[bytes]:
    """The first `size` bytes of a file, part by part.

    Raises:
        StorageFailure: The file became shorter meanwhile, or could not be read.
        FileNotFoundError: There is none.
    """
    file = fs.open(path)
    try:
        for start in range(0, size, PART_BYTES):
            wanted = min(PART_BYTES, size - start)
            try:
                part = file.pread(wanted, start)
            except OSError as error:
                raise StorageFailure(path, "read", str(error)) from error
            if len(part) < wanted:
                raise StorageFailure(path, "upload", f"it has fewer than {size} bytes by now")
            yield part
    finally:
        file.close()
