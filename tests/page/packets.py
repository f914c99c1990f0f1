"""Packets of the feed, as an engine sends them: ticks and requests by hand."""

ENGINE = {
    "engine_id": "0",
    "incarnation_id": "0123456789abcdef",
    "model": "m",
    "node": "",
    "n_slots": 4,
    "n_cells": 64,
    "token_budget": 512,
    "itl_target": "fixed",
    "itl_target_s": 0.03,
    "overlaps": False,
}
PARTS = {"plan_s": 0.001, "forward_s": 0.017, "sample_s": 0.001, "publish_s": 0.001, "total_s": 0.02}
COUNTS = {
    "n_sampled": 2,
    "n_accepted": 0,
    "n_drafted": 0,
    "n_embedded": 0,
    "n_finished": 0,
    "n_preempted": 0,
    "n_queued": 0,
    "n_queued_tokens": 0,
    "n_cells": 64,
    "n_cells_used": 8,
    "n_cells_idle": 0,
    "predicted_s": 0.0,
    "target_s": 0.0,
}


def tick(number=0, started_s=None, decodes=(0, 1), chunks=(), **more):
    """`decodes` are slots, `chunks` are (slot, start, length)."""
    spans = [[slot, 9, 1, 1] for slot in decodes] + [[*chunk, 0] for chunk in chunks]
    tokens = {"n_decode": len(decodes), "n_prefill": sum(length for *_, length in chunks), "spans": spans}
    started = {"tick_id": number, "started_s": number * 0.02 if started_s is None else started_s}
    return started | PARTS | COUNTS | {"gaps_s": []} | tokens | more


def request(name="r1", **more):
    moments = {"received_s": None, "arrived_s": 0.0, "assigned_s": 0.0, "first_token_s": 0.5, "ended_s": 1.0}
    known = {
        "state": "ended",
        "finish_reason": "stop",
        "error": None,
        "slot_id": 2,
        "tenant": "",
        "n_preempted": 0,
    }
    counts = {"n_prompt": 200, "n_cached": 0, "n_output": 5}
    return {"request_id": name, "stays": [[2, 0.0, 1.0]]} | moments | known | counts | more


def packet(ticks, requests=()):
    return {
        "engine": ENGINE,
        "now_s": 2.0,
        "unix_s": 1000.0,
        "next": 99,
        "ticks": ticks,
        "requests": list(requests),
    }
