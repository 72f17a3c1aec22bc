"""Reindex: rebuilds derived files by Spark."""
