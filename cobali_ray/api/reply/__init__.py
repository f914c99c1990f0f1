"""Events become an answer, whole or as a stream."""
