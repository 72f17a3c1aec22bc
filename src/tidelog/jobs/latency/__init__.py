"""Ingestion latency and lateness, computed by Spark."""
