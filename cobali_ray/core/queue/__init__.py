"""Who is let in, who waits, and who is next."""
