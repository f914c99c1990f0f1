"""What the next pass computes: whose tokens, how many, under which adapter, with which guesses."""
