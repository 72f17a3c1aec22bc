"""Benchmarks: `./run bench [NAME] [--quick] [--out FILE.json]`.

Each module `bench/NAME.py` has `cases(quick: bool) -> Iterable[Case]`; bench.harness measures
and reports them. Every figure is one against a named rival in the same run.
"""
