"""The laboratory: benchmarks, simulation, traces, and prompts run in process. Nothing that serves imports it.

`commands` is the command line, `load` and `servers` measure over HTTP, `inside` and `simulate` work in this
process, `report` writes reports, `trace` makes trace files, `models` makes models with random weights.
"""

__version__ = "0.2.0.dev0"
