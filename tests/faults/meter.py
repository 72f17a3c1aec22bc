"""Counts calls and bytes, and decides which call has to fail."""

import errno
import os
from dataclasses import dataclass
from enum import Enum


class FaultKind(Enum):
    """How a call fails."""

    EIO = "input/output error, nothing done"
    NO_SPACE = "no space left on the device, nothing done"
    SHORT_WRITE = "half of the bytes are written; calls other than writes succeed"


@dataclass(frozen=True, slots=True)
class Fault:
    """Which call fails and how.

    Attributes:
        call: The number of the call, counted from 0 over the file system's life.
        kind: How it fails.
        sticky: Whether every later call fails as well.
    """

    call: int
    kind: FaultKind
    sticky: bool = False

    def hits(self, call: int) -> bool:
        """Whether it applies to this call."""
        return call == self.call or (self.sticky and call > self.call)


def os_error(code: int, path: str) -> OSError:
    """The OSError subclass that the system call would have raised."""
    return OSError(code, os.strerror(code), path)


class Meter:
    """Calls made, calls failed, bytes used.

    Attributes:
        calls: Calls so far, failed ones among them.
        failed: `(call, operation, path)` of each that failed or fell short by the fault.
    """

    def __init__(self, fault: Fault | None) -> None:
        self.fault = fault
        self.calls = 0
        self.failed: list[tuple[int, str, str]] = []

    def enter(self, operation: str, path: str) -> FaultKind | None:
        """Count one call; `SHORT_WRITE` where it has to fall short.

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
