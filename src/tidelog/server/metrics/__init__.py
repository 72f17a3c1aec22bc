"""HTTP pages of the broker: metrics, health, readiness."""
