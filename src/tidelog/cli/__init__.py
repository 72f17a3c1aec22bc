"""The command line: arguments in, tables out. No logic of its own.

A module holds the commands of one concept: their options, calls and output; `jobs` those of the
jobs. `app` has the table of commands and the entry point; it imports a command when it is called,
so `--help` and small commands start fast. Arrow, numpy and numba are loaded by formats that need
them alone. `options` declares shared options, `places` opens directories and clusters, `output`
writes rows, `surroundings` has streams, errors and exit codes.
"""
