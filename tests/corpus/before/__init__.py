"""Directories of an earlier version: created once by the commit in `COMMIT`, and opened ever since.

`NAME.tar.xz` is such a directory with its related files, created by `made`; `answers` reads it.
"""
