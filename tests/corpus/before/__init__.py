"""Directories of an earlier version, created by the commit in `COMMIT`; later commits open them.

`NAME.tar.xz` is such a directory with its related files, created by `made`; `answers` reads it.
"""
