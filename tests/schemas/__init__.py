"""Schemas as people write them, answers that random models give under them, and whether those are valid."""
