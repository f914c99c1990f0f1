"""Admission, queues, fairness: who is let in, who waits, who is next."""
