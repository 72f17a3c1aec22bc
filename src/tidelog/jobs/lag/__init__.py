"""Lag of consumer groups, counted by Spark."""
