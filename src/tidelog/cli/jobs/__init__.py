"""Commands of the jobs: `tidelog spark NAME`, `tidelog audit` and `tidelog failover`.

Each job has a module, named like its package in `tidelog.jobs`, with the command's options, call,
output and report. `session` has the parts that all commands share.
"""
