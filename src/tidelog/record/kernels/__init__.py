"""Numba kernels over raw log bytes; each module says what it does, `compiler` what a kernel is."""
