"""Exchanges of requests and responses with a broker."""
