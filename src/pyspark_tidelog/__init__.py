"""How Spark finds `format("tidelog")` without registration.

Spark imports every top-level module named `pyspark_*` once per driver and takes its attribute
`DefaultSource`. Nothing else lives here, and nothing heavy is imported.
"""

try:
    from tidelog.spark.source import TidelogSource as DefaultSource
except ImportError:
    # An older Spark lacks what the source is made of; this one says so when it is asked for.
    from tidelog.spark.session import refusing_source

    DefaultSource = refusing_source()  # type: ignore[assignment, misc]

__all__ = ["DefaultSource"]
