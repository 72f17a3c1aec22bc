"""A directory of topics: its lock, its topics, its open partitions."""
