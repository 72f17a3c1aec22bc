"""Directories created by the code of the commit in `COMMIT`, which later versions must open.

`NAME.tar.xz` is such a directory with its related files, created by `made`; `answers` reads it.
"""
