"""llama.cpp behind a port: batches, sampling, the KV cache, devices."""
