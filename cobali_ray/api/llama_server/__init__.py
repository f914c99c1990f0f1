"""llama-server's own routes, for the clients that speak nothing else."""
