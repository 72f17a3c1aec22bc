"""Progress files of jobs: a JSON object with a version, replaced atomically and durably.

This module reads and writes the files, checks their version, and raises the errors for damage. Each
job checks its own fields (`replay.run`, `mirror.plan`, `audit.state`). `locked` holds a lock file
beside such a file.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import (
    Any,  # noqa: TID251 - JSON, checked by the job
    TypeAlias,
    TypeVar,
)

from tidelog.env import Env, FileSystem
from tidelog.errors import CorruptFile, DirectoryLocked, UnsupportedVersion
from tidelog.lazy_dataclass import dataclass
from tidelog.storage.files import SMALL_FILE_LIMIT_BYTES, read_decoded, write_atomically

_State = TypeVar("_State")
# Value of a file's JSON, whose type the job has not checked yet.
Json: TypeAlias = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressFile:
    """Format of the progress files of one job.

    Attributes:
        job: Name of the job for errors, such as "a mirror".
        version: The only version that this release writes and reads.
        is_derived: Whether the job can rebuild the content. If true, a file of an older version
            counts as damaged (CorruptFile), so the job rebuilds it. If false, a file of an older
            version is refused (UnsupportedVersion).
        is_compact: Whether the JSON is written without spaces and final newline.
        limit_bytes: Maximum size of a file in bytes.
    """

    job: str
    version: int
    is_derived: bool = False
    is_compact: bool = False
    limit_bytes: int = SMALL_FILE_LIMIT_BYTES

    def encode(self, fields: Mapping[str, object]) -> bytes:
        """Return the content of a file with these fields."""
        content = {"version": self.version, **fields}
        if self.is_compact:
            return json.dumps(content, separators=(",", ":")).encode()
        return f"{json.dumps(content)}\n".encode()

    def decode(self, data: bytes, state_of: Callable[[Mapping[str, Json]], _State]) -> _State:
        """Return the state in the content of a file.

        Args:
            data: The content.
            state_of: Converts the fields to a state. If `state_of` raises an exception for a wrong
                type or value, the file counts as damaged.

        Raises:
            CorruptFile: The content is not a result of `encode`, or has an older version and
                `is_derived` is true.
            UnsupportedVersion: The content has a later version; or the content has an older
                version, and `is_derived` is false.
        """
        try:
            content = json.loads(data)
            version = content["version"]
            if self.is_derived and version in range(1, self.version):
                raise CorruptFile(f"the state of {self.job} has the older version {version}")
            if version != self.version:
                raise UnsupportedVersion(
                    f"the state of {self.job} has version {version}, but this release supports only"
                    f" version {self.version}"
                )
            return state_of(content)
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            OverflowError,  # raised by int() for Infinity, which Python's JSON parser accepts
            RecursionError,
        ) as error:
            raise CorruptFile(f"not the state of {self.job}: {error}") from error

    def read(
        self, files: FileSystem, path: str, state_of: Callable[[Mapping[str, Json]], _State]
    ) -> _State | None:
        """Return the state in a file; None if the file does not exist.

        Raises:
            CorruptFile: The file is damaged; the error names the file's path.
            UnsupportedVersion: The file has another version (see `decode`); the message names the
                file's path.
        """
        try:
            return read_decoded(
                files, path, lambda data: self.decode(data, state_of), None, limit=self.limit_bytes
            )
        except UnsupportedVersion as error:
            raise UnsupportedVersion(f"{path}: {error}") from error

    def write(self, files: FileSystem, path: str, fields: Mapping[str, object]) -> None:
        """Replace a file durably; raises OSError if it can't be written."""
        write_atomically(files, path, self.encode(fields))


@contextmanager
def locked(env: Env, path: str, reason: str) -> Iterator[None]:
    """Hold a lock file in the block; raise DirectoryLocked if another process holds it."""
    try:
        lock = env.files.lock(path)
    except BlockingIOError as error:
        raise DirectoryLocked(reason) from error
    with closing(lock):
        yield
