"""What a forward pass costs: its runs, and how long it takes by what was learned."""
