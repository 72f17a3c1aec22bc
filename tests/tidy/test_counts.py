"""Commands write a count with its noun by `tidelog.amounts.plural`: no `1 records`."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.tidy.checks import ROOT

_COMMANDS = Path(ROOT, "src", "tidelog", "cli")
# Plural nouns that may follow a count in commands' texts. `bytes` is not in the list, because
# counts of bytes are always above one.
_NOUNS = re.compile(
    r" (changes|entries|files|findings|groups|keys|members|messages|offsets|partitions|places"
    r"|records|rows|segments|topics|users|zones)\b"
)


def _counted_by_hand(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.JoinedStr):
            continue
        for value, text in zip(node.values, node.values[1:], strict=False):
            if not isinstance(value, ast.FormattedValue) or not isinstance(text, ast.Constant):
                continue
            count, words = ast.unparse(value.value), str(text.value)
            if _NOUNS.match(words) and not count.isupper():  # constants are above one
                yield f"{path}:{node.lineno}: {{{count}}}{words}"


def test_commands_count_with_their_nouns() -> None:
    wrong = [line for path in sorted(_COMMANDS.rglob("*.py")) for line in _counted_by_hand(path)]
    assert not wrong, "use tidelog.amounts.plural:\n" + "\n".join(wrong)
