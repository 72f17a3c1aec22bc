"""One partition and a directory of them: segments, indexes, both clocks, recovery, retention."""
