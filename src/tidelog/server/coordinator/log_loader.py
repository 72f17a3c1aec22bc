"""Reads all batches of an internal log in pieces: by kernels if they are loaded, else in Python.

A log is read in a thread. Plain Python takes some microseconds for each record, and holds the GIL
during this time, so the event loop has to wait. Kernels mostly work without the GIL. So they take
over as soon as they are loaded, even in the middle of a log.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, TypeAlias

from tidelog.errors import CorruptData
from tidelog.record.batch_walk import Batch
from tidelog.storage.segment.slices import LogSlice

if TYPE_CHECKING:
    from tidelog.server.coordinator.log_kernels import KernelPieces, RecordCollector
    from tidelog.server.partitions.services import Services


FindKernels: TypeAlias = "Callable[[], KernelPieces | None]"

# Size in bytes at which a piece ends if it is read without kernels. Other work of the broker can
# proceed between two pieces.
PIECE_BYTES: Final = 1 << 20


class KernelsOf:
    """Function that returns the kernel reader of one log, or None until kernels are loaded."""

    def __init__(self, services: "Services") -> None:
        self._services = services
        self._reader: KernelPieces | None = None

    def __call__(self) -> "KernelPieces | None":
        """Return the reader, or None until kernels are loaded; called in the reading thread."""
        if self._reader is None and self._services.partitions.has_kernels:
            from tidelog.record.columns.decode import SECRET_BYTES
            from tidelog.server.coordinator.log_kernels import KernelPieces

            self._reader = KernelPieces(self._services.env.random.randbytes(SECRET_BYTES))
        return self._reader


def load_batches(slices: Iterable[LogSlice], take: Callable[[Batch], None]) -> Iterator[int]:
    """Read all batches in order, without kernels; yield the size of each piece in bytes."""
    for part in slices:
        begun = part.start_position
        for behind in _take_plainly(part, take):
            yield behind - begun
            begun = behind


def load_log(
    slices: Iterable[LogSlice],
    taker: "RecordCollector",
    find_kernels: FindKernels = lambda: None,
) -> Iterator[int]:
    """Read all batches of a log in pieces; after each piece, yield the piece's size in bytes.

    Args:
        slices: Slices of the log, in order.
        taker: Receives the batches, in order.
        find_kernels: Function that returns the reader that uses kernels, or None until the kernels
            are loaded. It is called before each slice, and after each piece that was read without
            kernels.

    Raises:
        CorruptData: A batch is damaged. The message has the file and position.
        StorageFailure: The disk failed.
    """
    for part in slices:
        remaining, kernels = part, find_kernels()
        if kernels is None:
            for behind in _take_plainly(part, taker.add):
                yield behind - remaining.start_position
                remaining, kernels = part._replace(start_position=behind), find_kernels()
                if kernels is not None:
                    break
        if kernels is not None:
            yield from kernels.take(remaining, taker)


def _take_plainly(part: LogSlice, take: Callable[[Batch], None]) -> Iterator[int]:
    """Read a slice without kernels; yield the position after each piece."""
    behind = begun = part.start_position
    for position, batch in part.batches():
        try:
            batch.ensure_valid()
            take(batch)
        except CorruptData as error:
            raise error.located(part.segment.log_path, position - batch.at) from error
        behind = position + len(batch.view)
        if behind - begun >= PIECE_BYTES:
            yield behind
            begun = behind
