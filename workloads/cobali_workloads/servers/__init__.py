"""Servers under test: started, watched, killed, ended."""
