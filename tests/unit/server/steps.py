"""What something costs in steps, which no busy machine changes."""

import sys
from collections.abc import Callable


def steps(action: Callable[[], object]) -> int:
    """How many calls of functions there are in an action."""
    count = 0

    def note(_frame: object, event: str, _what: object) -> None:
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(note)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count
