"""The remote tier of a partition as its readers see it: manifest, files, segments, cache.

What changes the tier (copying, deleting, collecting) is `tidelog.storage.tier_manager`.
"""
