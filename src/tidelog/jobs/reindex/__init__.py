"""Reindex: derived files, rebuilt by Spark."""
