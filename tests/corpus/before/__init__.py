"""Directories created by the code of the commit in `COMMIT`, which later versions must open.

The archive `NAME.tar.xz` has one of these directories with its related files. `made` creates the
archives, and `answers` reads the directories.
"""
