"""Pages of the broker: metrics, health, readiness."""
