"""A directory of topics: lock, topics, and open partitions."""
