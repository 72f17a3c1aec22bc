"""Parts of responses that are still in files, and the size from which a part stays in its file.

`SegmentBytes.records` (`segment_reads`) reads a range smaller than `PIECE_MIN_BYTES` into memory,
and returns a larger range as a `FilePiece`. When the client accepts bytes, `SendQueue`
(`net.send_queue`) chooses how they are sent: by sendfile if they are in the page cache, else
through a read in a thread; with TLS or without sendfile, through the transport. So a response of
any size takes almost no memory. A `FilePiece` keeps its file open, so that the bytes stay the same
even if the segment is rolled, deleted or replaced meanwhile.

Source: Kafka 4.x FileRecords.writeTo.
"""

from typing import Final, final

from tidelog.env import File, local_file
from tidelog.errors import StorageFailure

# Distance in bytes between the pages of a file that are looked up in the page cache (probed) before
# the file is sent. After a page was missing, the distance is `PROBE_BYTES`, the operating system's
# read-ahead. Otherwise it is `PROBE_RARELY_BYTES`, the size of one sendfile call, so that each call
# probes only its first and last page.
PROBE_BYTES: Final = 256 << 10

PROBE_RARELY_BYTES: Final = 1 << 20
_NOT_PROBED: Final = -1

# Minimum size of a `FilePiece`, in bytes. Smaller ranges are read into memory at once. The minimum
# must not be below `COPIED_BELOW` (`protocol.row_templates`) or `COPY_LIMIT_BYTES`
# (`protocol.wire`): encoders copy buffers below these sizes, but can't copy a `FilePiece`.
PIECE_MIN_BYTES: Final = 16 << 10


@final
class FilePiece:
    """Bytes [position, position + size_bytes) of a file, to read or send in order, in parts."""

    __slots__ = ("_cached_end", "_local", "file", "path", "position", "size_bytes")

    def __init__(
        self, file: File, path: str, position: int, size: int, *, is_begun: bool = False
    ) -> None:
        """Create a piece of an open file. `path` is for errors.

        `is_begun` is true if the first bytes of the piece were just read from memory.
        """
        self.file = file
        self.path = path
        self.position = position
        self.size_bytes = size
        self._local = local_file(file)
        # Position up to which bytes were found in memory.
        self._cached_end = position + 1 if is_begun else _NOT_PROBED

    def __len__(self) -> int:
        return self.size_bytes

    def skip(self, size: int) -> None:
        """Remove the first `size` bytes from the piece after they were sent."""
        self.position += size
        self.size_bytes -= size

    def is_cached(self, size: int, probe_bytes: int = PROBE_BYTES) -> bool:
        """Whether the first `size` bytes can be read without waiting for a disk.

        Bytes that were found in memory once are not probed again. Of the other bytes, only the
        first page, the last page and one page in each `probe_bytes` are probed.
        """
        local = self._local
        if local is None:
            return False
        end = self.position + size
        if self._cached_end < end:
            if not local.is_cached(self._probes(end, probe_bytes)):
                return False
            self._cached_end = end
        return True

    def _probes(self, end: int, probe_bytes: int) -> list[int]:
        """Return the positions to probe, below `end` and after the part already found in memory."""
        start = max(self._cached_end, self.position)
        positions = [*range(start + probe_bytes - 1, end - 1, probe_bytes), end - 1]
        if self._cached_end == _NOT_PROBED:  # else the bytes before `start` are cached
            positions.insert(0, start)
        return positions

    def send(self, socket: int, size: int) -> int:
        """Let the operating system send up to `size` bytes; return how many the socket accepted.

        Raises:
            BlockingIOError: The socket accepts nothing now.
            OSError: The connection or the disk failed.
            StorageFailure: The file is shorter than it was.
        """
        assert self._local is not None
        sent = self._local.send(socket, size, self.position)
        if not sent:
            raise StorageFailure(self.path, "read", f"file ends before byte {self.position + size}")
        return sent

    def read(self, size: int) -> bytes:
        """Return the first `size` bytes.

        Raises:
            OSError: The disk failed.
            StorageFailure: The file is shorter than it was.
        """
        data = self.file.pread(size, self.position)
        if len(data) < size:
            raise StorageFailure(self.path, "read", f"file ends before byte {self.position + size}")
        return data
