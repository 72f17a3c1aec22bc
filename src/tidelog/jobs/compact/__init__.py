"""Compaction of topics by Spark."""
