"""The model behind a port."""
