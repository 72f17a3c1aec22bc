"""One partition: append, read, retain, truncate, recover. Independent of the data directory."""
