"""A `Deferral` that runs its jobs when the test calls it, to simulate a thread of any speed."""

from collections import deque
from collections.abc import Callable

from tidelog.storage.log.durability import Done, Work


class Later:
    """Queue of jobs that runs them in order when `work` is called."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Work, Done]] = deque()

    @property
    def is_idle(self) -> bool:
        """Whether the queue is empty."""
        return not self.waiting

    def defer(self, work: Work, done: Done) -> None:
        """Queue a job."""
        self.waiting.append((work, done))

    def work(self, count: int = 1) -> int:
        """Run the next jobs; return how many jobs ran."""
        done = 0
        while self.waiting and done < count:
            job, follow = self.waiting.popleft()
            error: Exception | None = None
            try:
                job()
            except Exception as raised:  # noqa: BLE001 - passed to the log, as by a thread
                error = raised
            follow(error)
            done += 1
        return done

    def settle(self) -> None:
        """Run all queued jobs."""
        while self.work():
            pass

    def detach(self) -> Callable[[], None]:
        """Drop all queued jobs without running them."""
        self.waiting.clear()
        return self.settle
