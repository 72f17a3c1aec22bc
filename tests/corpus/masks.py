"""What is masked in the text of each entry, because it changes from run to run. Nothing else is."""

from pathlib import Path
from typing import Final

HOME_MASK: Final = "/tmp/corpus-00000000"


def masked(text: str, home: Path) -> str:
    """The text with the name of the part's directory masked by one of the same length."""
    return text.replace(str(home), HOME_MASK)
