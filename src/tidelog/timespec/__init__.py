"""Times and time ranges as text: one grammar for library, command line and Spark options.

The current time is an argument. docs/time.md has the grammar, with examples that a test runs.
Ambiguous text is refused, and the error lists the alternatives.
"""

from tidelog.timespec.grammar import (
    OPEN_END,
    OPEN_START,
    TIME_HELP,
    parse_point,
    parse_range,
    parse_sides,
    zone_of_question,
)
from tidelog.timespec.units import parse_duration
from tidelog.timespec.zones import format_ms, in_zone, time_text, zoned_text
