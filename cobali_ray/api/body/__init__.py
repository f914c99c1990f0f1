"""Bodies as clients write them: their shapes, their limits, and what each field means."""
