"""Client of the control channel of a directory.

Call `find_holder`, then the client's methods, then `close`, best in a `with` block. Not
thread-safe.
"""

import socket
from base64 import b64encode
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, cast

from tidelog.closing import Closing
from tidelog.control import channel, verbs
from tidelog.control.channel import ControlFailure, FrameReader, encode_frame
from tidelog.errors import CorruptMessage
from tidelog.storage.directory.attach import AttachResult, WriterVersion
from tidelog.storage.directory.staging import StagedSegment

if TYPE_CHECKING:
    from tidelog.storage.erasure import Receipt

# Default timeout in seconds. The timeout is long, because the server reads every byte of attached
# segments before it responds to `attach`.
TIMEOUT_S: Final = 600.0
_READ_BYTES: Final = 1 << 16


def find_holder(directory: str, *, timeout_s: float = TIMEOUT_S) -> "ControlClient | None":
    """Connect to the process that serves a directory's control channel; None if there is none.

    Args:
        directory: Directory of topics.
        timeout_s: Timeout of connecting and of each send and receive, in seconds.

    Raises:
        InvalidRequest: The directory's path is too long for a socket.
        ControlFailure: The connection failed for another reason, such as missing permissions.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        with channel.address(directory) as address:
            connection.connect(address)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()  # no process listens, or a process died and left its socket
        return None
    except OSError as error:
        connection.close()
        raise ControlFailure(f"{directory}/{channel.SOCKET_FILE}: {error.strerror}") from error
    except BaseException:
        connection.close()
        raise
    return ControlClient(directory, connection)


class ControlClient(Closing):
    """Connection to the process that holds a directory."""

    def __init__(self, directory: str, connection: socket.socket) -> None:
        self._directory = directory
        self._connection = connection
        self._reader = FrameReader()

    def status(self) -> Mapping[str, object]:
        """Return the directory's `path`, the holder's `pid`, and the `verbs` that it supports."""
        return self.call("status", {})

    def supports(self, verb: str) -> bool:
        """Whether the holder supports a verb."""
        verbs_ = self.status()["verbs"]
        return isinstance(verbs_, list) and verb in verbs_

    def flush(self) -> None:
        """Make all appended records durable; raises StorageFailure and the errors of `call`."""
        self.call("flush", {})

    def attach(
        self,
        staged: Iterable[StagedSegment],
        *,
        commit_id: str,
        version: WriterVersion | None = None,
    ) -> AttachResult:
        """Add all or none of the staged segments to the directory; see `storage.directory.attach`.

        Raises:
            ControlFailure: There was no usable response; either all segments were attached or none.
            TidelogError: The holder's call of `storage.directory.attach` failed, and no segment is
                visible. Exception: after a StorageFailure, the segments may become visible when the
                partitions are reopened.
        """
        arguments = {
            "segments": [verbs.encode_segment(segment) for segment in staged],
            "commit_id": commit_id,
            "writer": verbs.encode_version(version),
        }
        return verbs.read_attached(self.call("attach", arguments))

    def erase(
        self, topic: str, key: bytes, *, execute: bool, accepts_lost_times: bool = False
    ) -> "Receipt":
        """Erase all records of a key; if not `execute`, only find them. Return the receipt.

        The arguments are those of `storage.erasure.erase`.

        Raises:
            ControlFailure: There was no usable response; the key may be erased partly or fully.
                Sending the request again completes the erasure.
            TidelogError: The holder's call of `storage.erasure.erase` failed.
        """
        encoded = b64encode(key).decode("ascii")
        arguments = {
            "topic": topic,
            "key": encoded,
            "execute": execute,
            "accepts_lost_times": accepts_lost_times,
        }
        return cast("Receipt", self.call("erase", arguments))

    def call(self, verb: str, arguments: Mapping[str, object]) -> Mapping[str, object]:
        """Send a request and return the result in its response.

        Raises:
            TidelogError: The response is invalid, or is an error. An error is raised as the class
                that the response names.
            ControlFailure: There was no usable response; the request may have been executed.
            InvalidRequest: The request is too large and was not sent.
        """
        frame = encode_frame(channel.request(verb, arguments))
        try:
            self._connection.sendall(frame)
            message = self._receive()
        except (OSError, CorruptMessage) as error:
            raise ControlFailure(
                f"{self._directory}: the process that has the directory open did not respond to"
                f" {verb}: {error}"
            ) from error
        return channel.read_response(message)

    def _receive(self) -> dict[str, object]:
        while True:
            data = self._connection.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError(
                    "the connection was closed by the process that has the directory open"
                )
            for message in self._reader.feed(data):
                return message

    def await_release(self) -> None:
        """Wait until the holder has released the directory; call this after the release request.

        Raises:
            ControlFailure: The directory was not released within the timeout.
        """
        try:
            while self._connection.recv(_READ_BYTES):
                pass
        except ConnectionError:
            return  # the holder has ended without a clean stop
        except OSError as error:
            raise ControlFailure(
                f"{self._directory}: the process that has the directory open did not release it"
                f" in time: {error}"
            ) from error

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
