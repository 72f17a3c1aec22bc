"""A standby: a directory that copies a leader."""
