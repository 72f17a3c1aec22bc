"""Lag of consumer groups, computed by Spark."""
