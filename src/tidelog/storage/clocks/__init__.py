"""Append times, the append clock, zone maps and latency, as data. Independent of segments."""
