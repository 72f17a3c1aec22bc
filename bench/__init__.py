"""Benchmarks: `./run bench [NAME] [--quick] [--out FILE.json]`.

Each module `bench/NAME.py` has `cases(quick: bool) -> Iterable[Case]`. bench.harness measures and
reports the cases. A case with a rival names the rival and measures both in the same run.
"""
