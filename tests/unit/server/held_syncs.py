"""Syncs of a node's logs that come to no end before the test says so."""

import threading

from tests.worlds.waiting import PATIENCE_S

from tidelog.server.node import Node
from tidelog.server.work import THREADS


def hold_syncs(node: Node) -> threading.Event:
    """Keep all threads that sync busy until what is returned is set."""
    gate = threading.Event()
    assert node._syncs is not None
    for _ in range(THREADS):
        node._syncs.submit(lambda: gate.wait(PATIENCE_S))
    return gate
