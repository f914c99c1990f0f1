"""Talk to a server from a terminal: `cobali chat`, `complete` and `batch`. Knows HTTP, and no engine."""
