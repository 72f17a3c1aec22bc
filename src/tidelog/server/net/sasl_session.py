"""State of a connection on a SASL listener, and the requests that each state permits.

WANTS_HANDSHAKE -> WANTS_TOKENS -> OPEN -> WANTS_TOKENS -> ...

Before authentication, a client may send ApiVersions (only once in a supported version), then
SaslHandshake, then tokens. Tokens are sent in SaslAuthenticate, or in bare frames after a handshake
of version 0. On any other request the broker closes the connection. After authentication all other
APIs are permitted until the session expires. To continue, the client must re-authenticate on the
same connection before the session expires, as the same user with the same mechanism.

Source: KIP-43, KIP-152, KIP-368; Kafka 4.3's SaslServerAuthenticator.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final

from tidelog.error_codes import ErrorCode
from tidelog.protocol.framing import LENGTH_BYTES
from tidelog.protocol.messages import API_VERSIONS, SASL_AUTHENTICATE, SASL_HANDSHAKE
from tidelog.protocol.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from tidelog.protocol.requests import ReceivedRequest, read_request, write_response
from tidelog.server.api import dispatch
from tidelog.server.api.dispatch import Outcome, Pieces
from tidelog.server.api.node import LOGGER, ClientInfo, Node
from tidelog.server.net.listener_authentication import ListenerAuthentication
from tidelog.server.runtime.errors import NotLoggedIn
from tidelog.server.runtime.reply import start
from tidelog.server.security.sasl import AuthenticatedUser, LoginFailed, SaslServer, failure_text
from tidelog.types import Buffer

# Maximum size in bytes of a frame before authentication, and of a token at any time.
FRAME_BYTES_MAX: Final = 64 * 1024

# Timeout in ms for authentication, including the TLS handshake.
DEADLINE_MS: Final = 10_000

# Minimum time in ms between two re-authentications, as in Kafka.
RENEWAL_INTERVAL_MS: Final = 1000

_TOO_LATE: Final = "SaslAuthenticate request received after successful authentication"
_SERVED: Final = {SASL_HANDSHAKE.key: (0, 1), SASL_AUTHENTICATE.key: (0, 2)}


class State(Enum):
    """State of a connection's authentication."""

    WANTS_HANDSHAKE = "wants handshake"
    WANTS_TOKENS = "wants tokens"
    OPEN = "open"


class SaslSession:
    """Authentication of one connection with SASL. Used only in the event loop's thread.

    Attributes:
        is_closing: Whether the connection must be closed once the last response has been sent.
    """

    def __init__(
        self,
        node: Node,
        facts: ClientInfo,
        authentication: ListenerAuthentication,
        *,
        waited_ms: int,
        on_late: Callable[[str], None],
    ) -> None:
        """Create the session of an unauthenticated client.

        Args:
            node: The broker.
            facts: The client and its connection. Authentication sets the principal.
            authentication: The listener's authentication.
            waited_ms: Time in ms since the client connected, which counts towards the timeout.
            on_late: Called with a reason to close if authentication takes too long.
        """
        self._node = node
        self._facts = facts
        self._authentication = authentication
        self._state = State.WANTS_HANDSHAKE
        self._mechanism = ""
        self._exchange: SaslServer | None = None
        self._knows_versions = False
        self._has_bare_tokens = False
        self._login: AuthenticatedUser | None = None  # user of the current or last session
        self._login_mechanism = ""
        self._ends_ms: int | None = None  # monotonic time of the session's end
        self._renewed_ms: int | None = None
        self.is_closing = False
        self._on_late = on_late
        self._deadline = node.timers.after(max(DEADLINE_MS - waited_ms, 0), self._miss_deadline)

    def _miss_deadline(self) -> None:
        # After a failed authentication, the connection closes without this deadline, once the
        # delayed response is sent.
        if not self.is_closing:
            self._on_late("authentication timeout")

    def close(self) -> None:
        """Stop the timeout and drop its callback, because the connection has closed."""
        self._deadline.cancel()
        self._on_late = lambda _: None

    @property
    def is_open(self) -> bool:
        """Whether the client has authenticated."""
        return self._login is not None

    def answer(self, node: Node, connection: ClientInfo, frame: Buffer) -> Outcome:
        """Answer a frame. The result has the form that `dispatch.answer` describes.

        Raises:
            NotLoggedIn: The request is not permitted in this state. The connection closes.
            CorruptMessage: The frame breaks a rule of the protocol.
            UnsupportedVersion: The API or version isn't served.
        """
        if self._state is State.WANTS_TOKENS and self._exchange is None:
            return start(self._close_silently("re-authentication with another mechanism"))
        if self._state is State.WANTS_TOKENS and self._has_bare_tokens:
            return start(self._bare(bytes(frame)))
        key = int.from_bytes(frame[:2], "big")
        if key in _SERVED:
            return self._sasl(read_request(frame, _SERVED))
        if self._state is State.OPEN:
            self._ensure_in_session()
            return dispatch.answer(node, connection, frame)
        if key == API_VERSIONS.key and self._may_send_versions(int.from_bytes(frame[2:4], "big")):
            return dispatch.answer(node, connection, frame)
        if self._state is State.WANTS_TOKENS:
            raise self._failed_midway("request before authentication")
        raise NotLoggedIn("request before authentication")

    def _ensure_in_session(self) -> None:
        if self._ends_ms is not None and self._node.env.clock.monotonic_ms() >= self._ends_ms:
            raise NotLoggedIn("session expired without re-authentication")

    def _may_send_versions(self, version: int) -> bool:
        """Whether ApiVersions is permitted now; remember a request in a supported version.

        As in Kafka, no further ApiVersions is permitted after a request in a supported version.
        """
        if self._state is not State.WANTS_HANDSHAKE or self._knows_versions:
            return False
        self._knows_versions = version <= API_VERSIONS.last
        return True

    def _failed_midway(self, reason: str) -> NotLoggedIn:
        """Count a failed authentication, and return its error.

        The client has sent another request in the middle of the authentication.
        """
        self._node.metrics.login_failed(self._mechanism)
        return NotLoggedIn(f"{reason}, in the middle of {self._mechanism}")

    # -- handshakes ----------------------------------------------------------------------------

    def _sasl(self, request: ReceivedRequest) -> Outcome:
        message = request.message
        if isinstance(message, SaslHandshakeRequest):
            return self._handshake(request, message)
        assert isinstance(message, SaslAuthenticateRequest)
        if self._state is State.WANTS_TOKENS:
            return start(self._authenticate(request, bytes(message.auth_bytes)))
        if self._state is State.OPEN:
            self._ensure_in_session()
            return _illegal(request)
        raise NotLoggedIn("SaslAuthenticate before SaslHandshake")

    def _handshake(self, request: ReceivedRequest, handshake: SaslHandshakeRequest) -> Outcome:
        if self._state is State.WANTS_TOKENS:
            return start(self._out_of_turn(request))
        if self._state is State.OPEN and not self._may_renew():
            self._ensure_in_session()
            return write_response(
                request, SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
            )
        exchange = self._authentication.exchange(handshake.mechanism)
        if exchange is None:
            return start(self._unsupported(request))
        is_another = self._login is not None and handshake.mechanism != self._login_mechanism
        # If the client re-authenticates with another mechanism, it gets the error only for its next
        # token, as in Kafka.
        self._exchange, self._mechanism = None if is_another else exchange, handshake.mechanism
        self._has_bare_tokens = request.version == 0
        self._state = State.WANTS_TOKENS
        mechanisms = list(self._authentication.mechanisms)
        return write_response(request, SaslHandshakeResponse(mechanisms=mechanisms))

    def _may_renew(self) -> bool:
        """Whether the client may re-authenticate now.

        If the result is True, the time is remembered as the time of a re-authentication.
        """
        now_ms = self._node.env.clock.monotonic_ms()
        if self._renewed_ms is not None and now_ms - self._renewed_ms < RENEWAL_INTERVAL_MS:
            return False
        self._renewed_ms = now_ms
        return True

    async def _unsupported(self, request: ReceivedRequest) -> Pieces:
        await self._fail("other", LoginFailed("a mechanism that is not enabled"))
        mechanisms = list(self._authentication.mechanisms)
        response = SaslHandshakeResponse(
            error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=mechanisms
        )
        return write_response(request, response)

    async def _out_of_turn(self, request: ReceivedRequest) -> Pieces:
        await self._fail(self._mechanism, LoginFailed("SaslHandshake, expected SaslAuthenticate"))
        return write_response(
            request, SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        )

    async def _close_silently(self, reason: str) -> None:
        await self._fail(self._mechanism, LoginFailed(reason))

    # -- tokens --------------------------------------------------------------------------------

    async def _authenticate(self, request: ReceivedRequest, token: bytes) -> Pieces:
        try:
            auth_bytes = await self._step(token)
        except LoginFailed as error:
            await self._fail(self._mechanism, error)
            usual = failure_text(self._mechanism, is_renewal=self._login is not None)
            response = SaslAuthenticateResponse(
                error_code=ErrorCode.SASL_AUTHENTICATION_FAILED,
                error_message=error.client_message or usual,
            )
            return write_response(request, response)
        response = SaslAuthenticateResponse(error_message="", auth_bytes=auth_bytes)
        if self._state is State.OPEN:
            response.session_lifetime_ms = self._begin_session()
        return write_response(request, response)

    async def _bare(self, token: bytes) -> Pieces | None:
        """Process a bare token, after a handshake of version 0. On failure there is no response."""
        try:
            auth_bytes = await self._step(token)
        except LoginFailed as error:
            await self._fail(self._mechanism, error)
            return None
        if self._state is State.OPEN:
            self._begin_session()
        return [len(auth_bytes).to_bytes(LENGTH_BYTES, "big") + auth_bytes]

    async def _step(self, token: bytes) -> bytes:
        """Return the mechanism's response to a token. The last response opens the session."""
        exchange = self._exchange
        assert exchange is not None
        if len(token) > FRAME_BYTES_MAX:  # with an open session, frames can be longer
            raise LoginFailed(f"token of {len(token)} bytes exceeds {FRAME_BYTES_MAX} bytes")
        # The step runs in a thread, because hashing takes milliseconds and would block other
        # connections.
        auth_bytes = await self._node.logins.run(exchange.step, token)
        login = exchange.login
        if login is not None:
            self._ensure_same(login)
            self._login, self._login_mechanism = login, self._mechanism
            self._deadline.cancel()
            self._exchange = None
            self._state = State.OPEN
            self._facts.principal = f"User:{login.user}"
            self._node.metrics.logged_in(self._mechanism)
        return auth_bytes

    def _ensure_same(self, login: AuthenticatedUser) -> None:
        """Ensure that the same user re-authenticates; raises LoginFailed for another user."""
        if self._login is not None and login.user != self._login.user:
            message = "Cannot change principals during re-authentication from"
            both = f"User.{self._login.user}: User.{login.user}"
            raise LoginFailed(
                "re-authentication as another user", client_message=f"{message} {both}"
            )

    def _begin_session(self) -> int:
        """Begin a session; return its lifetime in ms, 0 for unlimited."""
        assert self._login is not None
        clock, config = self._node.env.clock, self._node.config
        limits = [config.connections_max_reauth_ms] if config.connections_max_reauth_ms else []
        if self._login.expires_ms is not None:
            limits.append(self._login.expires_ms - clock.now_ms())
        if not limits:
            return 0
        lifetime_ms = max(min(limits), 0)
        self._ends_ms = clock.monotonic_ms() + lifetime_ms
        return lifetime_ms

    async def _fail(self, mechanism: str, error: LoginFailed) -> None:
        """Count and log a failure, and delay its response."""
        self.is_closing = True
        self._node.metrics.login_failed(mechanism)
        text = "authentication of %s with %s failed: %s"
        LOGGER.warning(text, self._facts.host, mechanism, error)
        base_ms = self._node.config.connection_failed_authentication_delay_ms
        delay_ms = self._node.failed_logins.delay_ms(self._facts.host, base_ms)
        await self._node.timers.pause(delay_ms)


def _illegal(request: ReceivedRequest) -> Pieces:
    response = SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=_TOO_LATE
    )
    return write_response(request, response)
