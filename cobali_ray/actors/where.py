"""Where this process is, as Ray has it."""

from __future__ import annotations

from functools import partial
from typing import Any, TypedDict

import ray
from ray.serve._private import replica


class Place(TypedDict):
    """A node: its address and its id, both "" where there is no Ray."""

    host: str
    node_id: str


def where_am_i() -> Place:
    """Return the node of this process."""
    if not ray.is_initialized():
        return Place(host="", node_id="")
    node_id = str(ray.get_runtime_context().get_node_id())
    return Place(host=str(ray.util.get_node_ip_address()), node_id=node_id)


def stay_here() -> None:
    """Have Serve's gRPC server of this replica, which starts later, listen on the node's address alone.

    Serve itself has it listen on all addresses of the machine.
    """
    if host := where_am_i()["host"]:
        replica.add_port_to_grpc_server = partial(_listen_on, host, replica.add_port_to_grpc_server)


def _listen_on(host: str, listen: Any, server: Any, address: str) -> Any:
    return listen(server, address.replace("[::]", f"[{host}]" if ":" in host else host))
