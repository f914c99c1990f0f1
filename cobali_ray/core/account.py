"""What one tenant was served, and where its open requests are."""

from __future__ import annotations


class Account:
    """One tenant's counter, and where its open requests are."""

    __slots__ = ("n_open", "n_waiting", "served", "tenant", "weight")

    def __init__(self, tenant: str, weight: float) -> None:
        self.tenant, self.weight = tenant, weight
        self.served = 0.0
        """Tokens computed for it, divided by its weight."""
        self.n_open = self.n_waiting = 0

    def charge(self, n_tokens: float) -> None:
        self.served += n_tokens / self.weight
