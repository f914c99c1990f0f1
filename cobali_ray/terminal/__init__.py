"""Commands that talk to a server over HTTP: `cobali chat`, `complete` and `batch`."""
