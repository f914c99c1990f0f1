"""When the device picks the candidates and when whole rows are copied: decided pass by pass.

`RowSampler.suffices` says for which requests the candidates are enough; that changes only when a grammar
begins to hold, which is looked at before each pass. The engine names a slot's `RowSampler` when it is
assigned (`Backend.expect`).
"""

from __future__ import annotations

PATIENCE = 256
"""Sampled passes without need of a whole row before the device picks again."""
MOST_PATIENCE = 1 << 16


class Attachment:
    """Whether the sampler chains are attached to the context.

    Every change makes llama.cpp plan its memory anew, so they are rare: the first pass that needs a whole row
    detaches the chains, and they come back after `patience` passes without such a need. Where that proves
    wrong sooner than it took, it takes twice as long the next time: under a mixed load the changes die out.
    """

    def __init__(self, patience: int = PATIENCE) -> None:
        self.attached = True
        self._least_patience = self._patience = patience
        self._n_quiet = 0

    def decide(self, *, whole: bool) -> bool:
        """Say whether the chains shall be attached in the coming pass, given that it needs whole rows."""
        if not whole:
            self._n_quiet += 1
            if not self.attached and self._n_quiet > self._patience:
                self.attached, self._n_quiet = True, 0
            return self.attached
        if self.attached:
            early = self._n_quiet < self._patience
            self._patience = min(2 * self._patience, MOST_PATIENCE) if early else self._least_patience
            self.attached = False
        self._n_quiet = 0
        return False
