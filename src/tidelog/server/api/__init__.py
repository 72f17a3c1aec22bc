"""Handlers of requests (a module for each family of APIs), table of APIs, dispatch, charges."""
