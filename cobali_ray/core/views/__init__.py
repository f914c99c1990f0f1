"""What is shown of an engine: of its ticks and its cache, and how it is doing. Values only."""
