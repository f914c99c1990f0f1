"""cobali_ray: continuous batching for llama.cpp, served by Ray."""

__version__ = "0.1.0"
