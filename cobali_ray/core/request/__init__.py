"""Requests: their tokens, events, states and limits."""
