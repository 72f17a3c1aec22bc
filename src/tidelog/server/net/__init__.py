"""Sockets and bytes of the broker: connections, listeners, what is sent."""
