"""How Spark finds `format("tidelog")` without registration."""
