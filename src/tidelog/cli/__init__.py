"""The command line: arguments in, tables out. No logic of its own.

`main` is the entry point. `app` declares the commands; the other modules do the work and are
imported by the command that needs them, so that `--help` and small commands answer at once. Arrow,
numpy and numba are reached only where a format asks for them.
"""
