"""The remote tier of a partition, for reading: manifest, files, segments, cache.

`tidelog.storage.tier_manager` changes tiers.
"""
