"""Append times, the append clock, zone maps and latencies as data, independent of segments."""
