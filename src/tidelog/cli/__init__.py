"""The command line: parses arguments and prints tables. The log's logic is in other packages.

A module contains the commands of one concept, with their options, calls and output. Package `jobs`
contains the commands of the jobs. `app` has the table of commands and the entry point. It imports
the module of a command only when the command is called, so `--help` and small commands start fast.
Arrow, numpy and numba are loaded only by commands and formats that need them. `options` declares
shared options, `places` opens directories and clusters, `output` writes rows, `surroundings` has
streams, errors and exit codes.
"""
