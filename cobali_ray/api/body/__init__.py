"""Bodies as clients write them: shapes, limits, the meaning of each field."""
