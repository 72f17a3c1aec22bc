"""The command line: commands, tables, progress. No logic of its own."""
