"""The Spark data source and sink (`format("tidelog")`), and the jobs around them.

Names are loaded at their first use: `import tidelog.spark` reads neither pyspark nor Arrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from tidelog.spark.jobs.audit import audit
    from tidelog.spark.jobs.bootstrap import bootstrap
    from tidelog.spark.jobs.checks import TargetLoses
    from tidelog.spark.jobs.compact import compact
    from tidelog.spark.jobs.lag import lag
    from tidelog.spark.jobs.latency import latency
    from tidelog.spark.jobs.mirror import mirror
    from tidelog.spark.jobs.reindex import reindex
    from tidelog.spark.jobs.replay import replay
    from tidelog.spark.places import Place
    from tidelog.spark.query_progress import progress
    from tidelog.spark.session import setup
    from tidelog.spark.source import plan_batch

# Where each public name is found. A job's module has the name of its function.
_HOMES: Final = {
    "Place": "places",
    "TargetLoses": "jobs.checks",
    "audit": "jobs.audit",
    "bootstrap": "jobs.bootstrap",
    "compact": "jobs.compact",
    "lag": "jobs.lag",
    "latency": "jobs.latency",
    "mirror": "jobs.mirror",
    "plan_batch": "source",
    "progress": "query_progress",
    "reindex": "jobs.reindex",
    "replay": "jobs.replay",
    "setup": "session",
}

__all__ = [
    "Place",
    "TargetLoses",
    "audit",
    "bootstrap",
    "compact",
    "lag",
    "latency",
    "mirror",
    "plan_batch",
    "progress",
    "reindex",
    "replay",
    "setup",
]


def __getattr__(name: str) -> object:
    """Load a public name at its first use."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{home}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted(__all__)
