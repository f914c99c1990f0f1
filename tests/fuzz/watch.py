"""Eight plain streams and the gaps between what arrives.

`python watch.py URL SECONDS N_STREAMS` prints JSON.

A process of its own, so that what the sender of the fuzz does to itself is not taken for the server's doing.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import httpx2

LONG_GAP_S = 0.1


Gap = tuple[float, float]
"""How long, and when it ended, in seconds of the monotonic clock."""


async def stream(http: httpx2.AsyncClient, until_s: float, gaps: list[Gap], failures: list[str]) -> None:
    """Read answers one after the other; note each gap but those before a first token."""
    ask = {
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": 1500,
        "ignore_eos": True,
        "stream": True,
    }
    while time.monotonic() < until_s:
        try:
            async with http.stream("POST", "/v1/chat/completions", json=ask) as answer:
                if answer.status_code == 429:
                    await asyncio.sleep(0.2)
                    continue
                last, tail = None, b""
                async for piece in answer.aiter_raw():
                    now, tail = time.monotonic(), (tail + piece)[-64:]
                    if last is not None:
                        gaps.append((now - last, now))
                    last = now
                    if now > until_s:
                        return
                if answer.status_code != 200 or b"[DONE]" not in tail:
                    failures.append(f"status {answer.status_code}, ends with {tail!r}")
        except httpx2.HTTPError as error:
            failures.append(repr(error))


async def main() -> None:
    """Watch for a while and print what was seen."""
    url, seconds, n_streams = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
    gaps: list[Gap] = []
    failures: list[str] = []
    async with httpx2.AsyncClient(base_url=url, timeout=60.0) as http:
        until_s = time.monotonic() + seconds
        await asyncio.gather(*(stream(http, until_s, gaps, failures) for _ in range(n_streams)))
    gaps.sort()
    print(
        json.dumps(
            {
                "n_gaps": len(gaps),
                "p50_s": gaps[len(gaps) // 2][0] if gaps else None,
                "p99_s": gaps[int(len(gaps) * 0.99)][0] if gaps else None,
                "n_long": sum(gap > LONG_GAP_S for gap, _ in gaps),
                "longest": gaps[-64:],
                "failures": failures[:5],
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main())
