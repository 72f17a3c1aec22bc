"""Storage of partitions and directories: segments, indexes, both clocks, recovery, retention."""
