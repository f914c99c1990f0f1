"""What a row is drawn from, by the same parts that draw."""

import math

import numpy as np

from cobali_ray.backend.candidates import top_candidates, widen
from cobali_ray.backend.chain import weigh
from cobali_ray.backend.row_sampler import SamplingPath
from cobali_ray.backend.whole_row import masses, n_scratch, open_candidates, stack


def distribution(row, sampler):
    """Give what `sample_rows` would draw from: token ids and their probabilities, likeliest first.

    The sampler is unchanged and the row is not written to. A row that fails gives two empty lists.
    """
    row = row.copy()
    with np.errstate(all="ignore"):
        sampler.patch(row)
        peak = float(row.max())
        if not math.isfinite(peak):
            return [], []
        if sampler.route is SamplingPath.GREEDY:
            return [int(row.argmax())], [1.0]
        scratch = np.zeros(n_scratch(len(row)), np.float32)
        if sampler.route is SamplingPath.WHOLE:
            masses(row, peak, sampler.chain.temperature, scratch)
            weights, ids = scratch[: len(row)].astype(np.float64), np.arange(len(row))
        else:
            if sampler.route is SamplingPath.TOP:
                values, all_ids, _ = top_candidates(row[None], [0], sampler.width)
                mass = np.full(1, np.nan)
            else:
                found = open_candidates(row, sampler, peak, scratch)
                values, all_ids, mass = stack([found], widen(len(found[1])))
            weights, ids = weigh(values, np.array([sampler.chain]), mass)[0], all_ids[0]
    order = [at for at in np.argsort(-weights, kind="stable").tolist() if weights[at] > 0]
    return ids[order].tolist(), (weights[order] / weights.sum()).tolist()
