"""Reindex: rebuilds derived files in Spark tasks."""
