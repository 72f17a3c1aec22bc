"""Latency and lateness, counted by Spark."""
