"""What every HTTP request passes: id, origin, key and quota, log line, errors."""
