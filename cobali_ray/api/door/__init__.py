"""What every HTTP request passes: its id, its origin, its key and quota, its line in the log, its errors."""
