"""Workloads of the part `files`, what they do to a disk, and how that is written down."""
