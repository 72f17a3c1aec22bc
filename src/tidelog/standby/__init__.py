"""A standby: a data directory that continuously copies a leader."""
