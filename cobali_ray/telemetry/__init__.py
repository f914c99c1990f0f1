"""Metrics, logs of requests and ticks, traces: observes, never steers.

What the engine did is kept by reference and rendered only on demand, and not by the tick thread. A tick's
record (`core/views/stats.py`) holds its spans as the plan held them; an open request is its `Sequence`, read
from other threads; at its end a `Life` (`core/request/life.py`) is kept and the sequence is let go. The
collector keeps the last 4,096 of both.

    tick thread ──► Collector's rings (collector.py, lives.py)
                        │ read under the version number, by reference
    engine's event loop ▼ actors/ticks.py: JSON bytes, 32 ticks at a time
                        │ one answer of a Serve call, passed on as it is
    ingress             ▼ api/routes/debug.py: /debug/ticks
                        │ api/engines/viewers.py: /debug/stream, one poll for all viewers
    `cobali trace`      ▼ of the laboratory: recording, timeline (pure), Perfetto's protobuf

Spans for OpenTelemetry are made apart (`tracing.py`): the ingress opens one per request that generates and
puts its name into `Request.trace`; the engine's event loop makes the others when it learns of the end.
"""
