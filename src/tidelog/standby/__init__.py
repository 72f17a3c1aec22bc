"""A directory that copies a leader."""
