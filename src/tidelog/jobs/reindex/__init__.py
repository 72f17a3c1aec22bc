"""Derived files, rebuilt by Spark."""
