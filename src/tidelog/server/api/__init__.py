"""Handlers of requests, one module for each family of APIs; table of APIs, dispatch, charges."""
