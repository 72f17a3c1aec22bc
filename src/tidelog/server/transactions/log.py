"""The partitions of `__transaction_state`: what is read of them, and written.

How a partition is loaded, lost and loaded again is `internal_topic`'s.

Source: Kafka 4.3's TransactionStateManager.
"""

from collections.abc import Callable, Mapping, Sequence

from tidelog.error_codes import ErrorCode
from tidelog.record.builder import build_batch
from tidelog.server.groups.host import Host
from tidelog.server.groups.internal_topic import InternalTopic
from tidelog.server.groups.log_pieces import KernelsOf
from tidelog.server.groups.reply import Reply
from tidelog.server.topics import TRANSACTIONS_TOPIC
from tidelog.server.transactions.host import LOGGER
from tidelog.server.transactions.metadata import TransactionMetadata
from tidelog.server.transactions.replay import TransactionReplay
from tidelog.storage.log import Log
from tidelog.types import NewRecord

# A key, and its value or, to forget what the key names, None.
KeyValue = tuple[bytes, bytes | None]
LoadedIds = Mapping[str, TransactionMetadata]


class TransactionLog:
    """All partitions of the topic. Belongs to the loop's thread."""

    def __init__(
        self,
        host: Host,
        on_loaded: Callable[[int, LoadedIds, int], None],
        on_lost: Callable[[int | None], None],
    ) -> None:
        """Nothing is read yet.

        Args:
            host: The broker.
            on_loaded: Called with a partition's number, what it says, and the leader epoch that it
                is loaded under.
            on_lost: Called with the number of a partition that can't be served any more, None for
                all.
        """
        self._host = host
        config = host.config
        settings = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
        }
        self._topic: InternalTopic[LoadedIds] = InternalTopic(
            host,
            TRANSACTIONS_TOPIC,
            LOGGER,
            partitions=config.transaction_state_log_num_partitions,
            settings=settings,
        )
        self._topic.read, self._topic.take = self._read, self._take
        self._topic.on_lost = on_lost
        self._on_loaded = on_loaded

    def resume(self) -> None:
        """Begin to read what the topic has; fine where that was begun, or there is nothing."""
        self._topic.resume()

    # -- questions ---------------------------------------------------------------------------

    def number_of(self, transactional_id: str) -> int:
        """An id's partition; there must be some."""
        return self._topic.number_of(transactional_id)

    def code_for(self, transactional_id: str) -> ErrorCode:
        """Why an id can't be served now, `NONE` where it can."""
        return self._topic.code_for(transactional_id)

    @property
    def has_topic(self) -> bool:
        """Whether the topic is there."""
        return self._topic.is_there

    @property
    def is_loading(self) -> bool:
        """Whether some partition waits to be loaded."""
        return self._topic.is_loading

    async def loaded(self, transactional_id: str | None, *, wait_s: float) -> None:
        """Return when an id (all where None) is loaded, well or not, or after some seconds."""
        await self._topic.loaded(transactional_id, wait_s=wait_s)

    def epoch_of(self, number: int) -> int:
        """The leader epoch of a partition, under which its markers are written."""
        return self._host.partitions.leader_epoch(TRANSACTIONS_TOPIC, number)

    # -- the topic ---------------------------------------------------------------------------

    async def ensure_topic(self) -> ErrorCode:
        """Create the topic where it is not there; why that can't be, `NONE` where it is."""
        return await self._topic.ensure()

    def forget_topic(self) -> None:
        """The topic was deleted: there are no transactional ids any more."""
        self._topic.forget()

    def try_again(self) -> None:
        """Read what was lost where its log works again, whether somebody asks for it or not."""
        self._topic.try_again()

    # -- writing and reading -----------------------------------------------------------------

    def append(self, number: int, records: Sequence[KeyValue]) -> Reply[ErrorCode]:
        """Write records in one batch; when they are safe, or why they were not written."""
        now_ms = self._host.env.clock.now_ms()
        made = build_batch(
            [NewRecord(key=key, value=value, timestamp=now_ms) for key, value in records]
        )
        return self._topic.append(number, made)

    async def _read(self, log: Log) -> LoadedIds:
        """What a partition's records say."""
        if log.log_end_offset <= log.log_start_offset:
            return {}
        replay, work = TransactionReplay(), self._host.work
        pieces = replay.take(log.slices(), KernelsOf(self._host))
        while await work.run(next, pieces, None) is not None:
            pass
        return await work.run(replay.found)

    def _take(self, number: int, found: LoadedIds) -> None:
        self._on_loaded(number, found, self.epoch_of(number))
