"""Benchmarks: `./run bench [NAME] [--quick] [--out FILE.json]`.

Each module `bench/NAME.py` has `cases(quick: bool) -> Iterable[Case]`. bench.harness measures and
reports the cases. A rival is named, and measured in the same run.
"""
