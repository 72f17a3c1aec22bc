"""Bytes of an answer that still lie in a file: read, or sent by the kernel, as a client takes them.

A piece holds its file open: the segment may be rolled, deleted or replaced meanwhile, its bytes
stay what they were. So an answer of any size takes next to no memory until it is sent.
"""

from typing import Final, final

from tidelog.env import File, local_file
from tidelog.errors import StorageFailure

# How often pages are looked for before they are sent. Where some were missing a moment ago, as
# often as the kernel reads ahead; else where a part that is sent in one go begins and ends.
PROBE_BYTES: Final = 256 << 10
PROBE_RARELY_BYTES: Final = 1 << 20
_NEVER_SEEN: Final = -1
# Smaller ones are read at once; they must not be less than what writers join.
PIECE_MIN_BYTES: Final = 16 << 10


@final
class FilePiece:
    """Bytes [position, position + size) of a file; a read may be asked of any part of it."""

    __slots__ = ("_cached_end", "_local", "file", "path", "position", "size_bytes")

    def __init__(
        self, file: File, path: str, position: int, size: int, *, is_begun: bool = False
    ) -> None:
        """Such a piece of an open file, whose path is for errors.

        `is_begun`: its first bytes were seen in memory a moment ago.
        """
        self.file = file
        self.path = path
        self.position = position
        self.size_bytes = size
        self._local = local_file(file)
        # Up to here it was seen in memory.
        self._cached_end = position + 1 if is_begun else _NEVER_SEEN

    def __len__(self) -> int:
        return self.size_bytes

    def skip(self, size: int) -> None:
        """The first `size` bytes were taken: it is what follows them."""
        self.position += size
        self.size_bytes -= size

    def is_cached(self, size: int, probe_bytes: int = PROBE_BYTES) -> bool:
        """Whether the first `size` bytes can be had without waiting for a disk.

        What was seen in memory once is not asked for again: it was a moment ago. Nor is each page
        that was not: one in `probe_bytes` is, the first and the last.
        """
        local = self._local
        if local is None:
            return False
        end = self.position + size
        if self._cached_end < end:
            if not local.is_cached(self._looks(end, probe_bytes)):
                return False
            self._cached_end = end
        return True

    def _looks(self, end: int, probe_bytes: int) -> list[int]:
        """Where to look for what was not seen yet below `end`."""
        start = max(self._cached_end, self.position)
        looks = [*range(start + probe_bytes - 1, end - 1, probe_bytes), end - 1]
        if self._cached_end == _NEVER_SEEN:  # else the first one lies beside what was
            looks.insert(0, start)
        return looks

    def send(self, socket: int, size: int) -> int:
        """Let the kernel send of the first `size` bytes what a socket takes; how many.

        Raises:
            BlockingIOError: The socket takes nothing now.
            OSError: The connection or the disk failed.
            StorageFailure: The file is shorter than it was.
        """
        assert self._local is not None
        sent = self._local.send(socket, size, self.position)
        if not sent:
            raise StorageFailure(self.path, "read", f"it ends before byte {self.position + size}")
        return sent

    def read(self, size: int) -> bytes:
        """The first `size` bytes.

        Raises:
            OSError: The disk failed.
            StorageFailure: The file is shorter than it was.
        """
        data = self.file.pread(size, self.position)
        if len(data) < size:
            raise StorageFailure(self.path, "read", f"it ends before byte {self.position + size}")
        return data
