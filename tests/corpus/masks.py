"""What is masked in the text of each entry, because it changes from run to run. Nothing else is."""

import re
from pathlib import Path
from typing import Final

HOME_MASK: Final = "/tmp/corpus-00000000"
# Objects of a tier name the part's directory, with a checksum of one digit more or less.
_REMOVED: Final = re.compile(r"objects of \d+ bytes removed")
_PROCESS: Final = re.compile(r"\bprocess \d+\b")
# How long librdkafka has tried: "(after 0ms in state CONNECT)".
# A port that the system has chosen: five digits on Linux and macOS.
_PORT: Final = re.compile(
    r"(127\.0\.0\.1|localhost|\[::1\]|0\.0\.0\.0|\('127\.0\.0\.1')(:|, )[3-6]\d{4}\b"
)
_WAITED: Final = re.compile(r"\(after \d+ms in state")


def masked(text: str, home: Path) -> str:
    """The text with the name of the part's directory masked by one of the same length."""
    text = text.replace(str(home), HOME_MASK)
    text = _PROCESS.sub("process PID", text)
    text = _REMOVED.sub("objects of N bytes removed", text)
    return _WAITED.sub("(after Nms in state", _PORT.sub(r"\1\2#####", text))
