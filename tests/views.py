"""What a plan looks at of a sequence in a slot, without the sequence."""

from dataclasses import dataclass


@dataclass
class View:
    """A sequence as the pacer sees it: how far it is computed, and what is still to compute."""

    slot_id: int
    n_computed: int
    n_pending: int
    decoding: bool = False
    n_passed: int = 0
    n_unscored: int | None = None
    rank: tuple[int, float] = (0, 0.0)

    @property
    def seq_id(self):
        return self.slot_id
