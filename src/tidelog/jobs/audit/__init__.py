"""Audit by key."""
