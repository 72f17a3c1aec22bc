"""Work of logs in threads: its order, notifications on the loop, and waiting for its end."""

import asyncio
import threading
from collections.abc import Callable

import pytest
from tests.worlds.waiting import PATIENCE_S

from tidelog.server.runtime.threads import ThreadDeferral, Work


class Notes:
    """Records which jobs ran, and in which threads."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.threads: set[int] = set()

    def job(self, name: str) -> Callable[[], None]:
        def run() -> None:
            self.threads.add(threading.get_ident())
            self.lines.append(name)

        return run

    def told(self, name: str) -> Callable[[Exception | None], None]:
        def done(error: Exception | None) -> None:
            assert threading.get_ident() == threading.main_thread().ident
            self.lines.append(f"{name} {'failed' if error else 'done'}")

        return done


def test_jobs_run_in_threads_and_in_order() -> None:
    notes, work = Notes(), Work(4)
    finished = asyncio.Event

    async def story() -> None:
        deferral, over = ThreadDeferral(work), finished()
        for number in range(5):
            deferral.defer(notes.job(f"{number}"), notes.told(f"{number}"))
        deferral.defer(lambda: None, lambda _: over.set())
        await over.wait()
        assert deferral.is_idle

    asyncio.run(story())
    work.close()
    assert notes.lines == [line for n in range(5) for line in (f"{n}", f"{n} done")]
    assert threading.get_ident() not in notes.threads


def test_failure_is_reported() -> None:
    work, told = Work(1), list[str]()

    def fail() -> None:
        raise OSError(28, "no room")

    async def story() -> None:
        deferral = ThreadDeferral(work)
        deferral.defer(fail, lambda error: told.append(repr(error)))
        deferral.settle()

    asyncio.run(story())
    work.close()
    assert told == ["OSError(28, 'no room')"]


def test_settle_waits_for_the_running_job_and_runs_the_others() -> None:
    notes, work, gate = Notes(), Work(1), threading.Event()

    async def story() -> None:
        deferral = ThreadDeferral(work)
        deferral.defer(
            lambda: notes.lines.append(f"gate {gate.wait(PATIENCE_S)}"), notes.told("gate")
        )
        deferral.defer(notes.job("next"), notes.told("next"))
        threading.Timer(0, gate.set).start()
        deferral.settle()
        assert deferral.is_idle
        await asyncio.sleep(0)  # the notification of the thread is late and has no effect

    asyncio.run(story())
    work.close()
    assert notes.lines == ["gate True", "gate done", "next", "next done"]


def test_dropped_work_gets_no_callback() -> None:
    notes, work = Notes(), Work(1)

    async def story() -> None:
        deferral = ThreadDeferral(work)
        deferral.defer(notes.job("first"), notes.told("first"))
        deferral.defer(notes.job("second"), notes.told("second"))
        wait = deferral.detach()
        assert deferral.is_idle
        wait()
        await asyncio.sleep(0)

    asyncio.run(story())
    work.close()
    assert notes.lines in ([], ["first"])


@pytest.mark.parametrize("is_closed", [False, True])
def test_without_loop_or_threads_all_is_done_at_once(*, is_closed: bool) -> None:
    notes, work = Notes(), Work(1)
    if is_closed:
        work.close()

        async def story() -> None:
            ThreadDeferral(work).defer(notes.job("job"), notes.told("job"))

        asyncio.run(story())
    else:
        ThreadDeferral(work).defer(notes.job("job"), notes.told("job"))
        work.close()
    assert notes.lines == ["job", "job done"]


def test_a_failing_callback_does_not_delay_later_work() -> None:
    notes, work = Notes(), Work(1)

    def fail(_: Exception | None) -> None:
        raise ValueError("a defect")

    async def story() -> list[str]:
        deferral, over, told = ThreadDeferral(work), asyncio.Event(), list[str]()
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(str(context["exception"])))
        deferral.defer(notes.job("first"), fail)
        deferral.defer(notes.job("second"), lambda _: over.set())
        await asyncio.wait_for(over.wait(), PATIENCE_S)
        return told

    assert asyncio.run(story()) == ["a defect"]
    work.close()
    assert notes.lines == ["first", "second"]
