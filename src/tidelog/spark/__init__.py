"""The Spark data source and sink (`format("tidelog")`)."""
