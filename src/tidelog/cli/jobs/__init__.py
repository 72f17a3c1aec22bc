"""Commands of the jobs: `tidelog spark NAME`, `tidelog audit` and `tidelog failover`.

There is a module for each job, named as its package in `tidelog.jobs`: options, the call, output
and report. `session` has the shared parts of commands on Spark.
"""
