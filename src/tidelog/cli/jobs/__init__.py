"""Commands of the jobs: `tidelog spark NAME`, `tidelog audit` and `tidelog failover`.

Each job has a module here with the same name as the job's package in `tidelog.jobs`. The module
defines the command's options, runs the job, and prints the output and the report. `session` has the
parts that all commands share.
"""
