"""A streaming query that is started again where its Python came up late.

Spark gives the Python of a stream's source, and over Spark Connect that of its batches, ten seconds
to come up. No setting changes that, and a machine with much to do may take longer. What was noted
in the checkpoint by then holds, so the same query goes on from there.
"""

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql.streaming.query import StreamingQuery

STARTS: Final = 10
_LATE: Final = (
    "waiting for the Python worker to connect",
    "Python worker failed to connect back",
)


def is_late(error: Exception) -> bool:
    """Whether Spark gave a Python process up that did not come up in time."""
    return any(text in str(error) for text in _LATE)


class PatientQuery:
    """One query, by as many starts as it needs, `STARTS` in a row at most. For one thread.

    Attributes:
        current: The query of the last start.
    """

    def __init__(self, start: "Callable[[], StreamingQuery]") -> None:
        """Start it.

        Args:
            start: Starts it, also again, with one checkpoint.

        Raises:
            pyspark.errors.PySparkException: It can't be started.
        """
        self._start = start
        self._left = STARTS
        self.current = self._started()

    def _started(self) -> "StreamingQuery":
        from pyspark.errors import PySparkException

        while True:
            self._left -= 1
            try:
                return self._start()
            except PySparkException as error:
                if not (self._left and is_late(error)):
                    raise

    def has_ended(self, seconds: int) -> bool:
        """Wait so long for the end; whether it came.

        Raises:
            pyspark.errors.StreamingQueryException: What ended it before.
        """
        from pyspark.errors import StreamingQueryException

        try:
            has_ended = bool(self.current.awaitTermination(seconds))
            if self.current.lastProgress is not None:
                self._left = STARTS - 1  # it came up: what comes later is another trouble
            return has_ended
        except StreamingQueryException as error:
            if not (self._left and is_late(error)):
                raise
        self.current = self._started()
        return False
