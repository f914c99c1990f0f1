"""The shell around the scheduler: threads and data, no decisions."""
