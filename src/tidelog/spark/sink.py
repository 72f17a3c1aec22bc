"""The sink; not built yet."""

from collections.abc import Mapping

from pyspark.sql.datasource import DataSourceWriter
from pyspark.sql.types import StructType

from tidelog.errors import InvalidRequest


def make_writer(
    options: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceWriter:
    """A writer."""
    raise InvalidRequest(f"not built yet: {options} {schema} {overwrite}")
