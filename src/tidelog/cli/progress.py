"""Progress on a terminal, nothing elsewhere."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tidelog.cli.surroundings import Surroundings


@contextmanager
def byte_progress(
    surroundings: Surroundings, title: str, total_bytes: int | None
) -> Iterator[Callable[[int], None]]:
    """A bar on stderr; the function takes the number of bytes done so far.

    Args:
        surroundings: Whose stderr; without a terminal nothing is shown.
        title: What is being done.
        total_bytes: None where nobody knows.
    """
    if not surroundings.stderr.isatty():
        yield lambda _done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(file=surroundings.stderr)
    with Progress(console=console, transient=True) as bar:
        task = bar.add_task(title, total=total_bytes)
        yield lambda done: bar.update(task, completed=done)
