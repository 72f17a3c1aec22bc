"""The broker's pages: metrics, health, readiness."""
