"""Clients of every kind at once: of each API, such as leave, and such as ask for nonsense."""
