"""Questions to one broker over one connection, in the versions that both sides know.

Whatever goes wrong on the way (no connection, a broken message, an answer that refuses) is a
ClusterFailure that names the broker and what was tried; the connection is then closed and the next
question makes a new one. One owner.
"""

from typing import TYPE_CHECKING, Final, TypeVar

from tidelog.cluster import codes
from tidelog.cluster.follow_transport import Connect, Transport
from tidelog.error_codes import ErrorCode
from tidelog.errors import ClusterFailure, CorruptMessage, UnsupportedVersion
from tidelog.protocol.connection import MAX_FRAME_BYTES, ClientConnection
from tidelog.protocol.messages import API_VERSIONS, AnyApi, Api
from tidelog.protocol.messages.metadata import ApiVersionsRequest, ApiVersionsResponse
from tidelog.types import INT16_MAX

if TYPE_CHECKING:
    from collections.abc import Mapping

    from _typeshed import DataclassInstance

Request = TypeVar("Request", bound="DataclassInstance")
Response = TypeVar("Response", bound="DataclassInstance")

CLIENT_ID: Final = "tidelog-follow"
# Bytes asked of the system at once: what is allocated grows with what has really come.
_RECEIVE_BYTES: Final = 1 << 20


class LeaderClient:
    """One broker that is asked."""

    def __init__(
        self,
        host: str,
        port: int,
        connect: Connect,
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        client_id: str = CLIENT_ID,
    ) -> None:
        self.host = host
        self.port = port
        self._connect = connect
        self._max_frame_bytes = max_frame_bytes
        self._client_id = client_id
        self._transport: Transport | None = None
        self._connection = ClientConnection(client_id)
        self._versions: Mapping[int, tuple[int, int]] = {}

    @property
    def place(self) -> str:
        """`host:port`."""
        return f"{self.host}:{self.port}"

    def ask(self, api: Api[Request, Response], message: Request, *, least: int = 0) -> Response:
        """Ask and wait for the answer.

        Args:
            api: What is asked.
            message: The question.
            least: Lowest version that can say what is needed.

        Raises:
            ClusterFailure: The broker can't be reached, or its answer can't be read.
            UnsupportedVersion: It speaks no version that would do.
        """
        self.send(api, message, least=least)
        return self.receive(api)

    def version_of(self, api: AnyApi, *, least: int = 0, most: int = INT16_MAX) -> int:
        """The highest version of an API that both sides know, at most `most`; errors as `ask`."""
        if self._transport is None:
            self._open()
        lowest, highest = self._versions.get(api.key, (0, -1))
        version = min(api.last, highest, most)
        if version < max(api.first, lowest, least):
            known = f"{lowest} to {highest}" if highest >= 0 else "none"
            needed = f"{api.name} {max(api.first, least)} to {min(api.last, most)}"
            raise UnsupportedVersion(f"{self.place}: {needed} is needed, it speaks {known}")
        return version

    def send(
        self,
        api: Api[Request, Response],
        message: Request,
        *,
        least: int = 0,
        most: int = INT16_MAX,
    ) -> None:
        """Send a request in a version from `least` to `most`, without waiting; errors as `ask`."""
        version = self.version_of(api, least=least, most=most)
        self._send(api, version, message)

    def receive(self, api: Api[Request, Response]) -> Response:
        """Wait for the answer to the oldest question that has none yet; errors as `ask`."""
        try:
            answer = self._read()
        except OSError as error:
            raise self._broken(api, f"{error}") from error
        except CorruptMessage as error:
            raise self._broken(api, f"its answer breaks the protocol: {error}") from error
        assert isinstance(answer, api.response)
        return answer

    def _send(self, api: Api[Request, Response], version: int, message: Request) -> None:
        assert self._transport is not None
        try:
            self._transport.send(self._connection.request(api, version, message))
        except OSError as error:
            raise self._broken(api, f"{error}") from error

    def _read(self) -> "DataclassInstance":
        if self._transport is None:
            raise ConnectionError("the connection was closed")
        self._transport.begin_answer()
        while (answer := self._connection.next_response()) is None:
            wanted = min(max(self._connection.wanted_bytes, 1), _RECEIVE_BYTES)
            data = self._transport.receive(wanted)
            if not data:
                raise ConnectionError("the broker closed the connection")
            self._connection.feed(data)
        return answer

    def _open(self) -> None:
        try:
            self._transport = self._connect(self.host, self.port)
        except OSError as error:
            raise ClusterFailure(self.place, "connect", f"{error}") from error
        self._connection = ClientConnection(self._client_id, max_frame_bytes=self._max_frame_bytes)
        self._versions = self._ask_versions()

    def _ask_versions(self) -> dict[int, tuple[int, int]]:
        from tidelog import __version__

        question = ApiVersionsRequest(
            client_software_name="tidelog", client_software_version=__version__
        )
        self._send(API_VERSIONS, 3, question)
        answer = self.receive(API_VERSIONS)
        if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
            self._send(API_VERSIONS, 0, question)
            answer = self.receive(API_VERSIONS)
        self._ensure_right(answer)
        return {known.api_key: (known.min_version, known.max_version) for known in answer.api_keys}

    def _ensure_right(self, answer: ApiVersionsResponse) -> None:
        if answer.error_code:
            raise self._broken(API_VERSIONS, codes.named(answer.error_code), answer.error_code)

    def _broken(self, api: AnyApi, reason: str, code: int | None = None) -> ClusterFailure:
        self.close()
        return ClusterFailure(self.place, f"ask for {api.name}", reason, error_code=code)

    def close(self) -> None:
        """Close the connection; the next question makes a new one."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()
