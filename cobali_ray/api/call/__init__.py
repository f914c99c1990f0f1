"""A body becomes a call: its prompt, its tokens, and the engine's requests."""
