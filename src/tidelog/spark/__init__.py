"""The Spark data source and sink (`format("tidelog")`), and tidelog's Spark jobs.

Names are loaded at their first use: `import tidelog.spark` imports neither pyspark nor pyarrow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from tidelog.errors import MissingDependency

if TYPE_CHECKING:
    from tidelog.jobs.audit.job import audit
    from tidelog.jobs.bootstrap.job import bootstrap
    from tidelog.jobs.compact.job import compact
    from tidelog.jobs.lag.job import lag
    from tidelog.jobs.latency.job import latency
    from tidelog.jobs.mirror.job import mirror
    from tidelog.jobs.reindex.job import reindex
    from tidelog.jobs.replay.job import replay
    from tidelog.jobs.target_check import TargetLoses
    from tidelog.spark.places import Place
    from tidelog.spark.query_progress import progress
    from tidelog.spark.session import setup
    from tidelog.spark.source import plan_batch
    from tidelog.spark.tables import diff, table

# For each public name: the module that defines it, relative to `tidelog`. Jobs are in a layer above
# this package, so no module of this package may import a job.
_MODULES: Final = {
    "Place": "spark.places",
    "TargetLoses": "jobs.target_check",
    "audit": "jobs.audit.job",
    "bootstrap": "jobs.bootstrap.job",
    "compact": "jobs.compact.job",
    "diff": "spark.tables",
    "lag": "jobs.lag.job",
    "latency": "jobs.latency.job",
    "mirror": "jobs.mirror.job",
    "plan_batch": "spark.source",
    "progress": "spark.query_progress",
    "reindex": "jobs.reindex.job",
    "replay": "jobs.replay.job",
    "setup": "spark.session",
    "table": "spark.tables",
}

__all__ = [
    "Place",
    "TargetLoses",
    "audit",
    "bootstrap",
    "compact",
    "diff",
    "lag",
    "latency",
    "mirror",
    "plan_batch",
    "progress",
    "reindex",
    "replay",
    "setup",
    "table",
]


def __getattr__(name: str) -> object:
    """Load a public name at its first use.

    Raises:
        AttributeError: There is no public name `name`.
        MissingDependency: A package of `tidelog[spark]` is not installed.
    """
    module_name = _MODULES.get(name)
    if module_name is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"tidelog.{module_name}")
    except ImportError as error:
        raise MissingDependency(
            f"{__name__}.{name} needs pyspark and pyarrow: pip install 'tidelog[spark]' ({error})"
        ) from error
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return all public names, including names that are not loaded yet."""
    return sorted(__all__)
