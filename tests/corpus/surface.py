"""The surface: public signatures, help texts, settings, metrics, schemas and options."""

from collections.abc import Iterator
from pathlib import Path

from tests.corpus import surface_api, surface_help, surface_metrics, surface_settings, surface_spark
from tests.corpus.book import Entry


def play(home: Path) -> Iterator[Entry]:
    """Yield all pages of the surface."""
    yield from surface_api.pages()
    yield from surface_help.pages()
    yield from surface_settings.pages(home)
    yield from surface_metrics.pages(home)
    yield from surface_spark.pages(home / "spark")
