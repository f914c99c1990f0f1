"""Looks on, never steers: metrics built when scraped, one JSON line per request and per tick."""
