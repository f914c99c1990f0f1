"""Benchmarks. Nothing that serves imports them.

`commands` asks, `load` and `servers` measure over HTTP, `inside` measures in this process, `report` tells.
"""
