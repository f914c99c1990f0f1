"""Values that show an engine: its ticks, its cache, its progress."""
