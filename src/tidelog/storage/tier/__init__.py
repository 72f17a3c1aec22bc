"""Modules that read a partition's remote tier: its manifest, files, segments and cache.

`tidelog.storage.tier_manager` changes tiers.
"""
