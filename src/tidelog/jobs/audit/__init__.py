"""The audit by key."""
