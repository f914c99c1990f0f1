"""Workers that Ray places: one for each `ray-gpu` and `ray-cpu` among an engine's devices.

Ray reserves room for all of them at once, away from the engine's node and from each other as far as there
are nodes. They belong to the engine's process: whatever ends it, Ray ends their actors, and with an actor
ends the process that lends the device. A worker that is lost ends its engine, whose successor has others
placed, where there is room by then; where there is none, `split_fallback` has it begin with fewer.

Only public keys travel over Ray: each end of a tunnel makes its own pair.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cobali_ray.actors.where import where_am_i
from cobali_ray.backend import threads
from cobali_ray.backend.config import LlamaSettings
from cobali_ray.backend.devices import SPARE_S
from cobali_ray.backend.endpoint import PLACED, RAY_CPU, RAY_GPU
from cobali_ray.backend.rpc_build import built
from cobali_ray.backend.tunnel_key import CurvePair, TunnelAddress, TunnelKey
from cobali_ray.backend.workers import WorkerProcess
from cobali_ray.engine.opening import worker_cache
from cobali_ray.errors import ConfigError
from cobali_ray.ports import free_port

PLACE_S = 30.0
"""How long Ray may take to find room, also while an engine that has just ended still has some."""
LOOK_S = 2.0
"""How long Ray may take to say whether there is room for one."""
N_CPUS = 0.1
"""What Ray counts for a worker, as for other parts of ours: room is reserved for what it lends."""
HERE = 0.001
"""Of a node's own resource: enough to mean the node."""


class Lender:
    """An actor that has a worker on its node, and is gone when its engine is."""

    def lend(
        self, engine_key: bytes, word: str, n_threads: int | None, memory_mib: int | None
    ) -> tuple[str, int, bytes] | ConfigError:
        """Start the worker; once it lends, return its address and its public key, or else why it cannot."""
        cache, own = worker_cache(), CurvePair.new()
        host, port = where_am_i()["host"], free_port()
        words = ["--listen", host, str(port), "--weights", str(cache.parent / "weights")]
        if word == RAY_GPU:
            words.append("--gpu")
        try:
            built(cache)  # which may take longer than a worker may
            self._worker = WorkerProcess(
                cache,
                n_threads=n_threads or threads.default_n_threads(),
                memory_mib=memory_mib if word == RAY_CPU else None,
                words=words,
                first=b" ".join([engine_key, *own]) + b"\n",
            )
            self._worker.wait()
        except ConfigError as error:
            return error
        return host, port, own.public


@contextlib.contextmanager
def placed_workers(llama: LlamaSettings) -> Iterator[tuple[TunnelAddress | None, ...]]:
    """Have Ray place the workers that the settings ask for, for as long as it is open. Raises ConfigError.

    None is one that there is no room for, where the engine may go without (`split_fallback`).
    """
    words = [word for word in llama.devices if word in PLACED]
    if not words:
        yield ()
        return
    with contextlib.ExitStack() as held:
        places = _places(held, words, llama)
        own = CurvePair.new()
        actors = [None if place is None else _actor(*place) for place in places]  # which end when forgotten
        calls = [
            actor and actor.lend.remote(own.public, word, llama.n_threads, llama.worker_memory_mib)
            for actor, word in zip(actors, words, strict=True)
        ]
        yield tuple(call and _address(ray.get(call), own) for call in calls)


def has_room(llama: LlamaSettings, names: Sequence[str]) -> bool:
    """Whether Ray has room now for workers of these names, which an engine goes without. Blocks."""
    kinds = [name.rpartition("-")[0] for name in names]
    needs = [_need(kind, llama.worker_memory_mib) for kind in kinds if kind in PLACED]
    with contextlib.ExitStack() as held:
        return not needs or _reserve(held, needs, LOOK_S) is not None


_Place = tuple[dict[str, float], PlacementGroup, int]
"""What a worker has reserved, and where: a bundle of a group."""


def _places(held: contextlib.ExitStack, words: list[str], llama: LlamaSettings) -> list[_Place | None]:
    """Have Ray make room for all at once, or else, with `split_fallback`, for each. Raises ConfigError."""
    needs, spare = [_need(word, llama.worker_memory_mib) for word in words], llama.split_fallback
    within_s = SPARE_S if spare else PLACE_S
    if (room := _reserve(held, needs, within_s)) is not None:
        return [(need, room, i) for i, need in enumerate(needs, 1)]
    rooms = [_reserve(held, [need], LOOK_S) if spare else None for need in needs]
    if not any(rooms) and (not spare or len(words) == len(llama.devices)):
        what = " and ".join(f"{words.count(word)} {word}" for word in dict.fromkeys(words))
        why = f"Ray has no room for {what}, after {within_s:.0f} s: `ray status` tells what is free"
        raise ConfigError("devices", why)
    return [room and (need, room, 1) for need, room in zip(needs, rooms, strict=True)]


def _reserve(
    held: contextlib.ExitStack, needs: Sequence[dict[str, float]], within_s: float
) -> PlacementGroup | None:
    """Reserve this, away from here and from each other as far as may be; None if there is no room by then."""
    room = placement_group([{f"node:{where_am_i()['host']}": HERE}, *needs], strategy="SPREAD")
    if not room.wait(within_s):
        remove_placement_group(room)
        return None
    held.callback(remove_placement_group, room)  # which ends the actors in it
    return room


def _need(word: str, memory_mib: int | None) -> dict[str, float]:
    """Return what a worker has reserved on its node, as Ray calls it."""
    if word == RAY_GPU:
        return {"CPU": N_CPUS, "GPU": 1.0}
    return {"CPU": N_CPUS} | ({} if memory_mib is None else {"memory": float(memory_mib << 20)})


def _actor(need: dict[str, float], room: PlacementGroup, i: int) -> Any:
    place = PlacementGroupSchedulingStrategy(room, placement_group_bundle_index=i)
    resources = {"num_cpus": need["CPU"], "num_gpus": need.get("GPU", 0), "memory": need.get("memory")}
    return ray.remote(Lender).options(scheduling_strategy=place, **resources).remote()


def _address(answer: tuple[str, int, bytes] | ConfigError, own: CurvePair) -> TunnelAddress:
    if isinstance(answer, ConfigError):
        raise answer
    host, port, key = answer
    return TunnelAddress(host, port, TunnelKey(own, CurvePair(key)))
