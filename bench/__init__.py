"""Benchmarks: `./run bench [NAME] [--quick] [--out FILE.json]`.

Each module `bench/NAME.py` has `cases(quick: bool) -> Iterable[Case]`. bench.harness measures the
cases, and bench.report prints them. If a case compares tidelog with a rival, the case names the
rival, and tidelog and the rival are measured in the same run.
"""
