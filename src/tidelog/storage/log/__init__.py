"""One partition: append, read, retain, truncate, recover. It knows no directory."""
