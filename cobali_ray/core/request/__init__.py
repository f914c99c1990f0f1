"""What is asked and what becomes of it: requests, their tokens, events, states and limits."""
