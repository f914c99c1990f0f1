"""Trace files: what the engine did, tick by tick, for the Perfetto UI."""
