"""Background work of the broker: retention, flushes, compaction, the control channel."""
