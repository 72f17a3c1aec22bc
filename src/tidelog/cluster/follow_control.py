"""What another process may ask a standby while it follows, by its directory's control channel.

    status    who follows whom, and where every partition is
    flush     make durable what was copied
    accept_clock  as of every holder: for the time after it is promoted
    promote   stop following: all is made durable, the lock goes; who asked may open the directory
    swap      as of every holder: segments of one's own making take the place of finished ones

Nothing is attached to a standby: what it holds is what its leader has.
"""

from typing import TYPE_CHECKING, Final, Protocol

from tidelog.control.server import ControlServer
from tidelog.control.verbs import VERBS, Arguments, Result, Verbs, who
from tidelog.errors import CorruptMessage, InvalidRequest

if TYPE_CHECKING:
    from tidelog.cluster.follow_copy import Copy
    from tidelog.storage.log_dir import LogDir
    from tidelog.types import TopicPartition

PROMOTE: Final = "promote"


class Followed(Protocol):
    """What is asked of a follower."""

    copies: "dict[TopicPartition, Copy]"
    group_count: int
    is_promoted: bool

    @property
    def place(self) -> str:
        """The leader's `host:port`."""
        ...

    def make_durable(self) -> None:
        """Make all that was copied durable."""
        ...


def serve(follower: Followed, log_dir: "LogDir", notes: list[str]) -> ControlServer | None:
    """Let others ask; None where there can be no socket, which is noted: it follows all the same.

    Args:
        follower: Who is asked.
        log_dir: Its directory, open for writing.
        notes: Lengthened by what people should know.
    """
    try:
        return ControlServer.open(log_dir, control_verbs(follower))
    except (InvalidRequest, OSError) as error:
        notes.append(f"nobody can ask this process by a control channel: {error}")
        return None


def control_verbs(follower: Followed) -> Verbs:
    """What may be asked of a follower; in its own thread, between two rounds."""

    def status(log_dir: "LogDir", _: Arguments) -> Result:
        return who(log_dir, known) | _state(follower)

    def flush(_: "LogDir", __: Arguments) -> Result:
        follower.make_durable()
        return {}

    def promote(log_dir: "LogDir", arguments: Arguments) -> Result:
        _ensure_complete(follower, arguments)
        follower.make_durable()
        follower.is_promoted = True
        return who(log_dir, known) | _state(follower)

    def attach(log_dir: "LogDir", _: Arguments) -> Result:
        raise InvalidRequest(
            f"{log_dir.path} follows {follower.place}: only what the leader has is written to it;"
            " promote it first"
        )

    def erase(log_dir: "LogDir", _: Arguments) -> Result:
        raise InvalidRequest(
            f"{log_dir.path} follows {follower.place}: erase the key there, its tombstone comes"
            " here; of what lies here the key can be erased once this is promoted"
        )

    known: Verbs = {
        "status": status,
        "flush": flush,
        PROMOTE: promote,
        "attach": attach,
        "accept_clock": VERBS["accept_clock"],
        "swap": VERBS["swap"],
        "erase": erase,
    }
    return known


def _ensure_complete(follower: Followed, arguments: Arguments) -> None:
    """Raise InvalidRequest where all is asked for, and the leader has shown more than is here."""
    needs_all = arguments.get("needs_all", False)
    if not isinstance(needs_all, bool):
        raise CorruptMessage(f"promote: needs_all is {str(needs_all)[:20]!r}, true or false is due")
    lacking = [copy for copy in follower.copies.values() if copy.problem or not copy.is_caught_up]
    if needs_all and lacking:
        first = lacking[0]
        why = first.problem or f"it lacks {'?' if first.lag is None else first.lag} offsets"
        raise InvalidRequest(
            f"{len(lacking)} of {len(follower.copies)} partitions have not all that"
            f" {follower.place} has shown; {first.name}: {why}. It follows on; promote it without"
            " needs_all to go without these"
        )


def _state(follower: Followed) -> Result:
    return {
        "follows": follower.place,
        "groups": follower.group_count,
        "partitions": [_place(copy) for _, copy in sorted(follower.copies.items())],
    }


def _place(copy: "Copy") -> Result:
    return {
        "topic": copy.name.topic,
        "partition": copy.name.partition,
        "start": copy.log.log_start_offset,
        "end": copy.log.log_end_offset,
        "high_watermark": copy.high_watermark,
        "lag": copy.lag,
        "problem": None if copy.problem is None else str(copy.problem),
    }
