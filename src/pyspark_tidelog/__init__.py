"""Module by which Spark finds `format("tidelog")` without registration.

Spark imports every top-level module named `pyspark_*` once per driver and registers its attribute
`DefaultSource`. The module contains nothing else, and imports nothing heavy.
"""

try:
    from tidelog.spark.source import TidelogSource as DefaultSource
except ImportError:
    # An older Spark lacks base classes of `TidelogSource`. Then `DefaultSource` is another data
    # source, which raises an error that explains this.
    from tidelog.spark.session import refusing_source

    DefaultSource = refusing_source()  # type: ignore[assignment, misc] # its stand-in

__all__ = ["DefaultSource"]
