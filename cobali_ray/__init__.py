"""cobali_ray: continuous batching for llama.cpp, served by Ray."""

__version__ = "0.2.0.dev0"
