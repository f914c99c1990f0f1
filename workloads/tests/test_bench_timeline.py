"""From timelines to client TTFT, ITL, TPOT, E2E, goodput and attainment."""

import math

import pytest

from cobali_workloads.load.shape import Slo
from cobali_workloads.load.timeline import RequestTimeline, Spread, as_samples, summarise

NONE = Slo(ttft_s=1e9)


def timeline(*deltas, sent=10.0, ended=None, due=None, n_output=None, **values):
    return RequestTimeline(
        due_s=sent if due is None else due,
        sent_s=sent,
        deltas_s=deltas,
        ended_s=ended if ended is not None else max((sent, *deltas)),
        n_output=len(deltas) if n_output is None else n_output,
        **values,
    )


FOUR = timeline(10.5, 10.6, 10.8, 10.9, ended=11.1)


def test_one_request():
    assert FOUR.ttft_s == pytest.approx(0.5)
    assert FOUR.gaps_s == pytest.approx([0.1, 0.2, 0.1])
    assert FOUR.e2e_s == pytest.approx(1.1)
    assert FOUR.tpot_s == pytest.approx((1.1 - 0.5) / 3)


def test_tpot_goes_by_tokens_not_by_deltas():
    merged = timeline(10.5, 11.5, n_output=11)
    assert merged.tpot_s == pytest.approx(0.1)
    assert merged.gaps_s == pytest.approx([1.0])


@pytest.mark.parametrize(("what", "slo", "met"), [
    pytest.param(FOUR, Slo(ttft_s=0.51), True, id="ttft-met"),
    pytest.param(FOUR, Slo(ttft_s=0.49), False, id="ttft-missed"),
    pytest.param(FOUR, Slo(tpot_s=0.21), True, id="tpot-met"),
    pytest.param(FOUR, Slo(tpot_s=0.19), False, id="tpot-missed"),
    pytest.param(FOUR, Slo(itl_s=0.19), False, id="one-gap-too-long"),
    pytest.param(FOUR, Slo(ttft_s=0.51, itl_s=0.1), False, id="every-target-counts"),
    pytest.param(timeline(10.5), Slo(tpot_s=0.001, itl_s=0.001), True, id="one-token-has-no-tpot"),
    pytest.param(timeline(), Slo(ttft_s=100), False, id="no-token-no-ttft"),
    pytest.param(timeline(10.1, status="failed"), NONE, False, id="failed"),
    pytest.param(timeline(status="refused"), Slo(itl_s=1), False, id="refused"),
])  # fmt: skip
def test_slo(what, slo, met):
    assert what.meets(slo) is met


def test_refused_and_failed_count_as_missed_but_not_as_latency():
    run = [
        timeline(10.5, 11.0, sent=10.0, n_prompt=7, n_cached=3),
        timeline(12.5, 14.0, sent=12.0, n_prompt=9, n_cached=0),
        timeline(sent=11.0, ended=11.01, status="refused"),
        timeline(11.2, sent=11.0, ended=11.3, status="failed"),
    ]
    found = summarise(run, Slo(ttft_s=0.6, tpot_s=1.2))
    assert (found.n_sent, found.n_ok, found.n_refused, found.n_failed) == (4, 2, 1, 1)
    assert found.duration_s == pytest.approx(4.0)
    assert (found.n_prompt, found.n_computed, found.n_output) == (16, 13, 4)
    assert found.output_tokens_per_s == pytest.approx(1.0)
    assert found.goodput_rps == pytest.approx(1 / 4)
    assert found.attainment == pytest.approx(1 / 4)
    assert found.mean_concurrency == pytest.approx((1.0 + 2.0 + 0.01 + 0.3) / 4)
    assert found.ttft.n == 2
    assert found.itl.mean == pytest.approx(1.0)


def test_one_token_answers_are_left_out_of_tpot():
    found = summarise([timeline(10.5), FOUR], NONE)
    assert found.tpot.n == 1
    assert found.itl.n == 3


def test_lateness_of_the_sender():
    assert summarise([timeline(10.5, due=9.75)], NONE).late_p99_s == pytest.approx(0.25)


def test_percentiles_are_interpolated():
    spread = Spread.of([float(v) for v in range(101)])
    assert (spread.mean, spread.p50, spread.p90, spread.p99, spread.highest) == (50, 50, 90, 99, 100)
    assert Spread.of([]) is None


def test_figures_are_flat_and_say_nan_where_nothing_was_measured():
    figures = summarise([timeline(10.5)], NONE).figures()
    assert figures["ttft_p99_s"] == pytest.approx(0.5)
    assert math.isnan(figures["tpot_mean_s"])
    assert "ttft_n_s" not in figures


def test_samples_start_at_the_first_send():
    first, second = as_samples([FOUR, timeline(12.25, sent=12.0)])
    assert (first["sent_s"], first["deltas_s"][0]) == (0.0, 0.5)
    assert (second["sent_s"], second["deltas_s"]) == (2.0, [2.25])
