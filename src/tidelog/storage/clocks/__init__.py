"""Append times, the append clock, zone maps and latency, as data. Knows no segment."""
