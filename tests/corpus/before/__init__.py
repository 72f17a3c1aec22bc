"""Directories of an earlier version: created once by the commit in `COMMIT`, and opened ever since.

`NAME.tar.xz` is such a directory with its related files (`made`); `answers` reads it.
"""
