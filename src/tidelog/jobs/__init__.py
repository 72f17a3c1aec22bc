"""Jobs (one folder for each job), and modules that several jobs share.

A job that uses Spark has a public function, exported by `tidelog.spark`. The function takes a
session and returns the results as DataFrames, for further steps in Spark. Jobs that copy records
call `transform`, a function that the caller may give, on the rows between read and write. The job
`failover` needs no Spark, because it reads only two clusters and an offset map. It has no public
function: only the command `failover` calls it.
"""
