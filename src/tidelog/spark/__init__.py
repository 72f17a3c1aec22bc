"""The Spark data source and sink (`format("tidelog")`), and tidelog's Spark jobs.

Names are loaded at their first use: `import tidelog.spark` imports neither pyspark nor pyarrow.
"""

from typing import TYPE_CHECKING, Final

from tidelog.lazy_names import lazy_names

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


__getattr__ = lazy_names(
    __name__,
    {name: f"tidelog.{module}" for name, module in _MODULES.items()},
    "pyspark and pyarrow: pip install 'tidelog[spark]'",
)


def __dir__() -> list[str]:
    """Return all public names, including names that are not loaded yet."""
    return sorted(__all__)
