"""Share groups in a test, while no client is told of them."""

from collections.abc import Iterator

import pytest

from tidelog.server import handlers


def announce_shares(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Serve the APIs of share groups for as long as this is not resumed."""
    known = {row.key for row in handlers.ROWS}
    new = [row for row in handlers.SHARE_ROWS if row.key not in known]
    with monkeypatch.context() as patched:
        patched.setattr(handlers, "ROWS", (*handlers.ROWS, *new))
        for row in new:
            patched.setitem(handlers.BY_KEY, row.key, row)
        handlers.served_versions.cache_clear()
        yield
    handlers.served_versions.cache_clear()
