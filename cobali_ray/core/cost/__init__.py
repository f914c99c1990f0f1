"""What a pass of the model costs: its runs, and how long it takes by what was learned."""
