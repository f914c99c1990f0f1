"""A body becomes a call: its prompt, its tokens, the engine's requests."""
