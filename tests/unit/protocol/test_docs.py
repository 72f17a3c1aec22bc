"""The table of APIs in docs/protocol.md agrees with the APIs that the code declares."""

from pathlib import Path

from tidelog.protocol.messages import BY_KEY, AnyApi

DOCUMENT = Path(__file__).parents[3] / "docs" / "protocol.md"


def row(api: AnyApi) -> str:
    old = f" ({api.first_declared}-{api.first - 1})" if api.first_declared < api.first else ""
    old = old.replace("(0-0)", "(0)")
    versions = f"{api.first}-{api.last}" if api.first < api.last else f"{api.last}"
    flexible = f"{api.flexible}" if api.flexible <= api.last else "never"
    return f"| {api.key} | {api.name} | {versions}{old} | {flexible} | `{api.module}.py` |"


def test_the_table_of_apis_is_that_of_the_code() -> None:
    text = DOCUMENT.read_text(encoding="utf-8").splitlines()
    start = text.index("| key | API | versions | flexible from | declared in |") + 2
    end = text.index("", start)
    assert text[start:end] == [row(BY_KEY[key]) for key in sorted(BY_KEY)]
