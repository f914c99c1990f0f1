"""Measurements inside one process: the engine, its parts, llama.cpp."""
