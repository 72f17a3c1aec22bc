"""Jobs (one folder for each job), and modules that several jobs share.

A job that uses Spark has a public function, exported by `tidelog.spark`. The function takes a
session and returns the results as DataFrames, for further steps in Spark. Jobs that copy records
take an optional function `transform`, which converts the rows before they are written. The job
`failover` needs no Spark, because it reads only two clusters and an offset map. No public function
exists for `failover`: only the command calls the job.
"""
