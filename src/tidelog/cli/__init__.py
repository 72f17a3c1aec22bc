"""The command line: parses arguments and prints tables. Contains no logic of the log.

A module holds the commands of one concept: their options, calls and output; `jobs` holds the
commands of the jobs. `app` has the table of commands and the entry point. It imports the module of
a command only when the command is called, so `--help` and small commands start fast. Arrow, numpy
and numba are loaded only by commands and formats that need them. `options` declares shared options,
`places` opens directories and clusters, `output` writes rows, `surroundings` has streams, errors
and exit codes.
"""
