"""Arrow columns as Python values."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from examples.demo.flights import Column


def texts(column: "Column") -> list[str | None]:
    values = [cell.as_py() for cell in column]
    return [None if value is None else str(value) for value in values]
