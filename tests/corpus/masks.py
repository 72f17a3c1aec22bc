"""Masks for the parts of entries that differ between runs; everything else is kept."""

import re
from pathlib import Path
from typing import Final

HOME_MASK: Final = "/tmp/corpus-00000000"
# The sizes of a tier's objects vary, because an object contains the path of the part's directory,
# and a checksum whose number of digits varies.
_REMOVED: Final = re.compile(r"objects of \d+ bytes removed")
# Parts of a job's output: progress lines, speed in its result, start of Spark, process id.
_PROGRESS: Final = re.compile(r"^! .*: \d+ of \d+ \w+\n", re.MULTILINE)
_SPEED: Final = re.compile(r"in \d+\.\d s: [\d,.]+ records/s")
_BATCH: Final = re.compile(r"(batch \d+: [\d,]+ records?), [\d,.]+/s")
_STARTED: Final = re.compile(r"Spark \d+\.\d+\.\d+ is up at (\S+) after \d+\.\d s")
_PROCESS: Final = re.compile(r"\bprocess \d+\b")
# A port chosen by the system: five digits on Linux and macOS.
_PORT: Final = re.compile(
    r"(127\.0\.0\.1|localhost|\[::1\]|0\.0\.0\.0|\('127\.0\.0\.1')(:|, )[3-6]\d{4}\b"
)
# The random part of a commit's name. A thread draws it, before or after other draws, so it differs
# between runs.
_COMMIT: Final = re.compile(r"\btidelog-commit-[0-9a-f]{32}\b")
# A line per retry of librdkafka; the number of its retries before its timeout varies.
_TRIES: Final = re.compile(
    r"(?:^! closed connection \d+ (from \S+: byte 0: frame .*\n))+", re.MULTILINE
)
# If a listener in plain text closes a TLS connection, librdkafka gives one of two reasons, by
# chance. The longer reason is kept.
_NO_TLS: Final = "SSL handshake failed: Disconnected: SSL connection closed by peer"
_NO_TLS_HINT: Final = ": connecting to a PLAINTEXT broker listener?"
_CLOSED: Final = re.compile(
    r"(?:SSL handshake failed: )?Disconnected: SSL connection closed by peer"
    rf"(?:{re.escape(_NO_TLS_HINT)})?"
)
# For a request that found no controller, librdkafka gives one of two reasons, by chance.
_CONTROLLER: Final = re.compile(r"(?:Failed while waiting|Timed out waiting) for controller")
# The time that a broker took to open its logs.
_OPENED: Final = re.compile(r"opened in \d+\.\d s")
# The time for which librdkafka has tried to connect, as in "(after 0ms in state CONNECT)".
_WAITED: Final = re.compile(r"\(after \d+ms in state")


def masked(text: str, home: Path) -> str:
    """Return the text with varying values masked; the mask of a path is as long as the path."""
    text = text.replace(str(home), HOME_MASK)
    text = _PROCESS.sub("process PID", text)
    text = _TRIES.sub(r"! closed connection N \1", text)
    text = _CLOSED.sub(f"{_NO_TLS}{_NO_TLS_HINT}", text)
    text = _CONTROLLER.sub("Failed while waiting for controller", text)
    text = _OPENED.sub("opened in 0.0 s", text)
    text = _COMMIT.sub("tidelog-commit-ID", text)
    text = _REMOVED.sub("objects of N bytes removed", text)
    return _WAITED.sub("(after Nms in state", _PORT.sub(r"\1\2#####", text))


# Times of Spark's processes, by the machine's clock: ISO 8601, as in tables, and epoch ms.
_ISO: Final = re.compile(r"\b20(?:2[5-9]|[3-9]\d)-\d\d-\d\d([T ])\d\d:\d\d:\d\d\.\d{3}")
_EPOCH_MS: Final = re.compile(r"\b(17[4-9]|1[89]\d)\d{10}\b")
# A digest of a job's input, which includes the input's path.
_JOB: Final = re.compile(r"\bjob [0-9a-f]{32}\b")


def masked_job(text: str) -> str:
    """Return the text of a Spark job without progress, speed, version and the machine's time."""
    text = _SPEED.sub("in N s: N records/s", _PROGRESS.sub("", text))
    text = _BATCH.sub(r"\1, N/s", text)
    text = _STARTED.sub(r"Spark N.N.N is up at \1 after N s", text)
    text = _JOB.sub("job ID", text)
    return _EPOCH_MS.sub("N" * 13, _ISO.sub(r"YYYY-MM-DD\1hh:mm:ss.mmm", text))
