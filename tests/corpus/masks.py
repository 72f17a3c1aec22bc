"""What is masked in the text of each entry, because it changes from run to run. Nothing else is."""

import re
from pathlib import Path
from typing import Final

HOME_MASK: Final = "/tmp/corpus-00000000"
# Objects of a tier name the part's directory, with a checksum of one digit more or less.
_REMOVED: Final = re.compile(r"objects of \d+ bytes removed")
# Lines that tell from time to time how far a job is, and how fast it was.
_PROGRESS: Final = re.compile(r"^! .*: \d+ of \d+ \w+\n", re.MULTILINE)
_SPEED: Final = re.compile(r"in \d+\.\d s: [\d,.]+ records/s")
_STARTED: Final = re.compile(r"Spark \d+\.\d+\.\d+ is up at (\S+) after \d+\.\d s")
_PROCESS: Final = re.compile(r"\bprocess \d+\b")
# A port that the system has chosen: five digits on Linux and macOS.
_PORT: Final = re.compile(
    r"(127\.0\.0\.1|localhost|\[::1\]|0\.0\.0\.0|\('127\.0\.0\.1')(:|, )[3-6]\d{4}\b"
)
# Drawn among others of a thread that has its own time: which one comes first is by chance.
_COMMIT: Final = re.compile(r"\btidelog-commit-[0-9a-f]{32}\b")
# How often librdkafka tries before its time is up.
_TRIES: Final = re.compile(
    r"(?:^! connection \d+ (of \S+ closed: byte 0: a frame .*\n))+", re.MULTILINE
)
# How long librdkafka has tried: "(after 0ms in state CONNECT)".
_WAITED: Final = re.compile(r"\(after \d+ms in state")


def masked(text: str, home: Path) -> str:
    """The text with the name of the part's directory masked by one of the same length."""
    text = text.replace(str(home), HOME_MASK)
    text = _PROCESS.sub("process PID", text)
    text = _TRIES.sub(r"! connection N \1", text)
    text = _COMMIT.sub("tidelog-commit-ID", text)
    text = _REMOVED.sub("objects of N bytes removed", text)
    return _WAITED.sub("(after Nms in state", _PORT.sub(r"\1\2#####", text))


# The machine's own time, by which Spark's processes go: ISO 8601, as in tables, and epoch ms.
_ISO: Final = re.compile(r"\b20(?:2[5-9]|[3-9]\d)-\d\d-\d\d([T ])\d\d:\d\d:\d\d\.\d{3}")
_EPOCH_MS: Final = re.compile(r"\b(17[4-9]|1[89]\d)\d{10}\b")
# A digest of what a job loads, its path included.
_JOB: Final = re.compile(r"\bjob [0-9a-f]{32}\b")


def masked_job(text: str) -> str:
    """The text of a job on Spark without progress, speed, version and the machine's time."""
    text = _SPEED.sub("in N s: N records/s", _PROGRESS.sub("", text))
    text = _STARTED.sub(r"Spark N.N.N is up at \1 after N s", text)
    text = _JOB.sub("job ID", text)
    return _EPOCH_MS.sub("N" * 13, _ISO.sub(r"YYYY-MM-DD\1hh:mm:ss.mmm", text))
