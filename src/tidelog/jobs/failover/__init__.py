"""The proof of a fail-over."""
