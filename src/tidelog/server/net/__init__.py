"""Sockets of the broker: connections, listeners, responses."""
