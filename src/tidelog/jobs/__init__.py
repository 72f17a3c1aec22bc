"""Jobs, with one folder each, and modules that several jobs share.

A job with Spark takes a session and returns its results as DataFrames, so that the next step can be
Spark again; its public function is exported by `tidelog.spark`. Jobs that copy records call
`transform`, a function that the caller may give, on the rows between read and write. `failover`
needs no Spark: it reads two clusters and an offset map, and only commands call it.
"""
