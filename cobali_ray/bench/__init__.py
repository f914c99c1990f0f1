"""The load generator: seeded load shapes, requests sent over HTTP, reports."""
