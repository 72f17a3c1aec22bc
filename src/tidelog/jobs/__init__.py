"""Jobs, with one folder each, and modules that several jobs share.

A job that uses Spark has a public function, exported by `tidelog.spark`. The function takes a
session and returns the results as DataFrames, for further steps in Spark. Jobs that copy records
call `transform`, a function that the caller may give, on the rows between read and write.
`failover` needs no Spark, because it reads two clusters and an offset map; only a command calls it.
"""
