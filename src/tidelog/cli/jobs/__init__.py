"""Commands of the jobs: `tidelog spark NAME`, `tidelog audit` and `tidelog failover`.

A module a job, named as its package in `tidelog.jobs`: options, the call, output and report.
`session` is what those on Spark share.
"""
