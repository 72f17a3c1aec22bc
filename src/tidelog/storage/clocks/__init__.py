"""Times as data: append times, the append clock, zone maps, latency. It knows no segment."""
