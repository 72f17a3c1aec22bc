"""The remote tier of a partition as its readers see it: manifest, files, segments, cache.

`tidelog.storage.tier_manager` changes tiers.
"""
