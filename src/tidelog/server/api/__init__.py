"""Handlers of requests, one module for each family of APIs.

The table of APIs, dispatch, and quota charges.
"""
