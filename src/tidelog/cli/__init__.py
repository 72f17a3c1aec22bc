"""The command line: arguments in, tables out. No logic of its own.

A command is its module: it declares its options, does its work and prints. `app` has the table of
them and the entry point; it imports a command when it is called, so that `--help` and small
commands answer at once. Arrow, numpy and numba are reached only where a format asks for them.
"""
