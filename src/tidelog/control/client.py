"""Client of the control channel of a directory.

Life cycle: find_holder, calls, close; best used in a `with` block. Not thread-safe.
"""

import socket
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from tidelog.closing import Closing
from tidelog.control import channel, verbs
from tidelog.control.channel import ControlFailure, FrameReader, encode_frame
from tidelog.errors import CorruptMessage
from tidelog.storage.directory.attach import AttachResult, Exchanged, WriterVersion
from tidelog.storage.directory.staging import NewSegment, StagedSegment
from tidelog.types import TopicPartition

# An attach walks every byte of its segments: a holder may be busy for long.
TIMEOUT_S: Final = 600.0
_READ_BYTES: Final = 1 << 16


def find_holder(directory: str, *, timeout_s: float = TIMEOUT_S) -> "ControlClient | None":
    """The process that serves a directory's control channel; None where nobody does.

    Args:
        directory: The directory of topics.
        timeout_s: How long to wait for each answer.

    Raises:
        InvalidRequest: The directory's path is too long for a socket.
        ControlFailure: There is a socket, and this user may not use it.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout_s)
        with channel.address(directory) as address:
            connection.connect(address)
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()  # nobody, or one that died and left its socket
        return None
    except OSError as error:
        connection.close()
        raise ControlFailure(f"{directory}/{channel.SOCKET_FILE}: {error.strerror}") from error
    except BaseException:
        connection.close()
        raise
    return ControlClient(directory, connection)


class ControlClient(Closing):
    """One connection."""

    def __init__(self, directory: str, connection: socket.socket) -> None:
        self._directory = directory
        self._connection = connection
        self._reader = FrameReader()

    def status(self) -> Mapping[str, object]:
        """Who holds the directory: `path`, `pid`, and the `verbs` that it knows."""
        return self.ask("status", {})

    def flush(self) -> None:
        """Make everything that was appended durable; raises StorageFailure."""
        self.ask("flush", {})

    def attach(
        self,
        staged: Iterable[StagedSegment],
        *,
        commit_id: str,
        version: WriterVersion | None = None,
    ) -> AttachResult:
        """Make staged segments part of the directory, all together; as `storage.directory.attach`.

        Raises:
            ControlFailure: No answer came: they may be attached, all of them, or not.
            TidelogError: What `storage.directory.attach` raises; nothing is visible then.
        """
        arguments = {
            "segments": [verbs.encode_segment(segment) for segment in staged],
            "commit_id": commit_id,
            "writer": verbs.encode_version(version),
        }
        return verbs.read_attached(self.ask("attach", arguments))

    def swap(
        self,
        partition: TopicPartition,
        bases: Sequence[int],
        new: Iterable[NewSegment],
        *,
        commit_id: str,
    ) -> Exchanged:
        """Put staged segments in the place of finished ones; as `storage.directory.attach`.

        Raises:
            ControlFailure: No answer came: they may be exchanged, all of them, or not.
            TidelogError: What `storage.directory.attach` raises; the old ones are there then.
        """
        arguments = {
            "topic": partition.topic,
            "partition": partition.partition,
            "bases": list(bases),
            "segments": [verbs.encode_new(segment) for segment in new],
            "commit_id": commit_id,
        }
        return verbs.read_exchanged(self.ask("swap", arguments))

    def erase(self, topic: str, key: bytes, *, execute: bool) -> Mapping[str, object]:
        """Erase a key of a topic, or look where it is; the receipt, as `storage.erasure`.

        Raises:
            ControlFailure: No answer came: it may be erased, in part or whole. Asking again goes
                on.
            TidelogError: What `storage.erasure.erase` raises.
        """
        encoded = b64encode(key).decode("ascii")
        return self.ask("erase", {"topic": topic, "key": encoded, "execute": execute})

    def ask(self, verb: str, arguments: Mapping[str, object]) -> Mapping[str, object]:
        """One request and its answer.

        Raises:
            TidelogError: What the holder answers, of its own type.
            ControlFailure: No answer came; the holder may have done what it was asked.
            InvalidRequest: The request is too large; it was not sent.
        """
        frame = encode_frame(channel.request(verb, arguments))
        try:
            self._connection.sendall(frame)
            message = self._receive()
        except (OSError, CorruptMessage) as error:
            raise ControlFailure(
                f"{self._directory}: the process that has it open did not answer {verb}: {error}"
            ) from error
        return channel.read_answer(message)

    def _receive(self) -> dict[str, object]:
        while True:
            data = self._connection.recv(_READ_BYTES)
            if not data:
                raise ConnectionResetError("it has closed the connection")
            for message in self._reader.feed(data):
                return message

    def await_release(self) -> None:
        """Return when the holder has let go of the directory, after it was asked to.

        Raises:
            ControlFailure: It has not within the time-out.
        """
        try:
            while self._connection.recv(_READ_BYTES):
                pass
        except ConnectionError:
            return  # it ended in the midst of something; it has ended
        except OSError as error:
            raise ControlFailure(
                f"{self._directory}: the process that has it open does not let go of it: {error}"
            ) from error

    def close(self) -> None:
        """End the connection."""
        self._connection.close()
