"""The dispatcher of an ingress: which engine gets which request. Pure.

When an engine dies in mid-answer:

1. `EngineLink._keep` in `actors/link.py`: the call that it keeps open fails; so does the control call
   (`ServeEngineClient._returned`). One that is only silent: `EngineLink._answered`.
2. `Dispatcher._returned` in `core/dispatch/dispatcher.py`, with `Dispatcher._lost` and `Dispatcher._silent`:
   the engine is away (`Dispatcher._lose`), and each of its requests is taken from it (`Dispatcher._cut`).
3. `RequestRecord.move` in `core/dispatch/request.py`: whether the request goes on; `Dispatcher._place` sends
   it to another engine, or lets it wait.
4. `Dispatcher._attended` in `core/dispatch/dispatcher.py`: the successor answers, and `Dispatcher._change`
   places the requests that waited (`Dispatcher._place_waiting`).
5. `RequestRecord.send` in `core/dispatch/request.py`, by `Dispatcher._send`: the same request with another
   id, the tokens that its client has, and the time that is left.
6. `Engine.submit` in `engine/engine.py`: behind those tokens continue `Samplers.open` (penalties, grammar,
   random numbers), `RequestBooks._submitted` (at the head of its line) and `Emitter.open` (text, stop
   strings).
"""
