"""How Spark finds `format("tidelog")` without registration.

Spark imports every top-level module named `pyspark_*` once per driver and takes its attribute
`DefaultSource`. Nothing else lives here, and nothing heavy is imported.
"""

from tidelog.spark.source import TidelogSource as DefaultSource

__all__ = ["DefaultSource"]
