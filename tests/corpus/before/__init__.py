"""Directories of before: made once by the commit that `COMMIT` names, and opened ever since.

`NAME.tar.xz` is such a directory with what belongs to it (`made`); `answers` asks it.
"""
