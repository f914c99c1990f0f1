"""What slots, host memory and the disk hold, and where a prompt is placed.

What a prompt begins from:

1. `Router.choose` in `core/dispatch/route.py`, by `ModelRecord.choose`: the engine that holds most of it, if
   that is worth the queue there.
2. `Tiers.look_on_disk` in `core/tiers.py`, by `RequestBooks._submitted`: if the disk has more than slots and
   host memory (`Tiers.n_held`), the request waits while `Disk._load` reads it and `Tiers.loaded` books it
   (`HostTier.load`).
3. `Scheduler._next` in `core/scheduler.py`: a prompt whose beginning is being computed for another waits for
   that (`Tiers.n_coming`).
4. `Tiers.place` in `core/tiers.py`, by `Scheduler._assign`: what host memory has (`HostTier.match`) and where
   states are (`States.find`) go to `Slots.choose`, where `choose_placement` weighs all slots.
5. `HostMemory.carry_out` in `engine/host.py`: Truncate, Copy, Restore and RestoreState, before the pass; a
   slot that could not be filled (`HostMemory.unrestored`) is computed.
6. `RequestBooks._release` in `core/books.py`: the slot keeps what it holds (`Slots.release`).
7. `Tiers.save` in `core/tiers.py`: what a slot loses goes to host memory (`HostTier.insert`) and to disk
   (`Tiers._store`, then `Disk.store`); `Tiers.back_up` writes what idle slots hold.
"""
