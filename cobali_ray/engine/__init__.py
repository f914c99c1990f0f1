"""The shell that moves data and decides nothing."""
