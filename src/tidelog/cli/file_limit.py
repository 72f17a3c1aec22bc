"""How many files a command may have open: as many as the system lets it.

A connection takes a descriptor, and where nobody has said otherwise a process may have 1,024.
"""

import resource
from contextlib import suppress


def raise_file_limit() -> None:
    """Let this process open as many files as its hard limit says; fine where that can't be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        # macOS says that there is no limit, and refuses to set it so.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
