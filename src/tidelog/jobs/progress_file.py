"""Progress files of jobs: one JSON object with a version, replaced atomically and durably.

Owns reading and writing the file, its version, and the errors for damage. Not owned: the fields,
which each job checks itself (`replay.run`, `mirror.plan`, `audit.state`).
"""

import json
from collections.abc import Callable, Mapping
from typing import (
    Any,  # noqa: TID251 - JSON, checked by the job
    TypeVar,
)

from tidelog.env import FileSystem
from tidelog.errors import CorruptFile, UnsupportedVersion
from tidelog.lazy_dataclass import dataclass
from tidelog.storage.files import SMALL_FILE_LIMIT_BYTES, read_file, write_atomically

_State = TypeVar("_State")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressFile:
    """Progress files of one job.

    Attributes:
        job: The job, in errors, such as "a mirror".
        version: Version of the files.
        is_derived: Whether a file of an older version counts as damaged, and is rebuilt.
        is_compact: Whether the text is without spaces and a newline.
        limit_bytes: Maximum size of a file.
    """

    job: str
    version: int
    is_derived: bool = False
    is_compact: bool = False
    limit_bytes: int = SMALL_FILE_LIMIT_BYTES

    def encode(self, fields: Mapping[str, object]) -> bytes:
        """Return the text of a file."""
        content = {"version": self.version, **fields}
        if self.is_compact:
            return json.dumps(content, separators=(",", ":")).encode()
        return f"{json.dumps(content)}\n".encode()

    def decode(self, data: bytes, state_of: Callable[[Mapping[str, Any]], _State]) -> _State:
        """Return the state in a text.

        Args:
            data: The text.
            state_of: Returns the state of its fields. What a field of another type or value raises
                there means a damaged file.

        Raises:
            CorruptFile: The text is not what `encode` returns.
            UnsupportedVersion: A later release wrote it.
        """
        try:
            content = json.loads(data)
            version = content["version"]
            if self.is_derived and version in range(1, self.version):
                raise CorruptFile(f"the state of {self.job} of version {version}")
            if version != self.version:
                raise UnsupportedVersion(
                    f"{self.job} of version {version}, {self.version} is known"
                )
            return state_of(content)
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            OverflowError,  # int() of Infinity, which JSON of Python may hold
            RecursionError,
        ) as error:
            raise CorruptFile(f"not the state of {self.job}: {error}") from error

    def read(
        self, files: FileSystem, path: str, state_of: Callable[[Mapping[str, Any]], _State]
    ) -> _State | None:
        """Return the state in a file, None if there is no file.

        Raises:
            CorruptFile: The file is damaged; has its path.
            UnsupportedVersion: A later release wrote it; names its path.
        """
        try:
            return self.decode(read_file(files, path, limit=self.limit_bytes), state_of)
        except FileNotFoundError:
            return None
        except CorruptFile as error:
            raise error.located(path) from error
        except UnsupportedVersion as error:
            raise UnsupportedVersion(f"{path}: {error}") from error

    def write(self, files: FileSystem, path: str, fields: Mapping[str, object]) -> None:
        """Replace a file; raises OSError."""
        write_atomically(files, path, self.encode(fields))
