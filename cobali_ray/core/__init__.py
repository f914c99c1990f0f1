"""Pure decisions: no I/O, clock, thread or randomness."""
