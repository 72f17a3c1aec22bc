"""Splits as JSON text, for jobs that send them to workers as plain data.

Text of one split: an object with the fields of `Split`, its pieces and aborted transactions as
lists of objects. It lives for one job, so it has no version: both sides run the same release.
"""

import dataclasses
import json

from tidelog.scan.split import AbortedSpan, Piece, Split
from tidelog.types import ClockName, IsolationLevel


def encode_split(split: Split) -> str:
    """The split as JSON."""
    return json.dumps(dataclasses.asdict(split), separators=(",", ":"))


def decode_split(text: str) -> Split:
    """What `encode_split` made."""
    fields = json.loads(text)
    times = fields["time_range"]
    fields |= {
        "pieces": tuple(Piece(**piece) for piece in fields["pieces"]),
        "aborted": tuple(AbortedSpan(**span) for span in fields["aborted"]),
        "clock": ClockName(fields["clock"]),
        "isolation": IsolationLevel(fields["isolation"]),
        "time_range": None if times is None else (times[0], times[1]),
    }
    return Split(**fields)
