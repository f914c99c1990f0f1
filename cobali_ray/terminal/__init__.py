"""Talk to a server from a terminal: `cobali chat` and `cobali complete`. Knows HTTP, and no engine."""
