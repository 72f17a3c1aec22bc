"""What all parts of the broker run on: replies, loop, threads, counters."""
