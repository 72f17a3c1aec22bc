"""Workloads of the part `files`, their effects on a disk, and the text form of the effects."""
