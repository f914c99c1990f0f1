"""Where this process is, as Ray has it."""

from __future__ import annotations

from typing import TypedDict

import ray

from cobali_ray.actors.ray_private import listen_on


class NodeAddress(TypedDict):
    """A node: its address and its id, both "" where there is no Ray."""

    host: str
    node_id: str


def where_am_i() -> NodeAddress:
    if not ray.is_initialized():
        return NodeAddress(host="", node_id="")
    node_id = str(ray.get_runtime_context().get_node_id())
    return NodeAddress(host=str(ray.util.get_node_ip_address()), node_id=node_id)


def stay_here() -> None:
    """Have Serve's gRPC server of this replica listen on the node's address alone."""
    if host := where_am_i()["host"]:
        listen_on(host)
