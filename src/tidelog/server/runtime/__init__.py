"""Foundations of the broker: replies, event loop, threads, counters."""
