"""Log of one partition: append, read, retention, truncation and recovery."""
