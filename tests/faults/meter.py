"""Counts calls and bytes, and decides which call has to fail."""

import errno
import os
from dataclasses import dataclass
from enum import Enum


class FaultKind(Enum):
    """Kind of a call's failure."""

    EIO = "input/output error, nothing done"
    NO_SPACE = "no space left on the device, nothing done"
    SHORT_WRITE = "half of the bytes are written; calls other than writes succeed"


@dataclass(frozen=True, slots=True)
class Fault:
    """A failure of a chosen call.

    Attributes:
        call: Index (from 0) of the failing call among all changing calls of the file system, or
            among all its reading calls for a `read_fault`.
        kind: Kind of the failure.
        sticky: Whether every later call fails as well.
    """

    call: int
    kind: FaultKind
    sticky: bool = False

    def hits(self, call: int) -> bool:
        """Whether the call with this index fails."""
        return call == self.call or (self.sticky and call > self.call)


def os_error(code: int, path: str) -> OSError:
    """Return the OSError subclass that the system call would raise."""
    return OSError(code, os.strerror(code), path)


class Meter:
    """Counts calls, and keeps the calls that failed.

    Attributes:
        calls: Number of calls so far, including failed ones.
        failed: `(call, operation, path)` of each call that failed, or was cut short, by the fault.
    """

    def __init__(self, fault: Fault | None) -> None:
        self.fault = fault
        self.calls = 0
        self.failed: list[tuple[int, str, str]] = []

    def enter(self, operation: str, path: str) -> FaultKind | None:
        """Count one call.

        Return `SHORT_WRITE` if only half of the bytes are to be written, or None.

        Raises:
            OSError: The call fails.
        """
        call, self.calls = self.calls, self.calls + 1
        if self.fault is None or not self.fault.hits(call):
            return None
        kind = self.fault.kind
        if kind is not FaultKind.SHORT_WRITE or operation == "write":
            self.failed.append((call, operation, path))
        if kind is FaultKind.SHORT_WRITE:
            return kind
        raise os_error(errno.EIO if kind is FaultKind.EIO else errno.ENOSPC, path)
