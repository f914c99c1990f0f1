"""Streams of a model on devices, whose sums round by what is computed together: they may differ at ties."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httpx2

from tests.chaos.crowd import COMPLETIONS, HUNG_S, Pid, Report, befall, chunks, kill

N_TOKENS = 200
TIE = 0.3
"""Two tokens whose logprobs are so near each other may change places: what is computed anew in one
piece rounds otherwise than token by token, by up to 0.14 in 216 answers."""
ASKED = {"max_tokens": N_TOKENS, "ignore_eos": True, "stream": True, "temperature": 0, "logprobs": 4}


@dataclass
class Chain:
    """The tokens of one answer, and what else each could have been."""

    tokens: list[str] = field(default_factory=list)
    likeliest: list[dict[str, float]] = field(default_factory=list)

    def add(self, chunk: dict[str, Any]) -> None:
        """Take a chunk."""
        for choice in chunk["choices"]:
            if logprobs := choice.get("logprobs"):
                self.tokens += logprobs["tokens"]
                self.likeliest += logprobs["top_logprobs"]

    def flaw(self, other: Chain) -> str:
        """Say where another answer to the same is wrong; "" if nowhere before a tie, and as long."""
        if len(other.tokens) != N_TOKENS:
            return f"{len(other.tokens)} tokens instead of {N_TOKENS}"
        for place, (token, there) in enumerate(zip(self.tokens, other.tokens, strict=True)):
            if token != there:
                known = self.likeliest[place]
                near = there in known and known[token] - known[there] <= TIE
                return "" if near else f"token {place} is {there!r}, and {token!r} was to come: {known}"
        return ""


async def endure_losses(url: str, pid: Pid, *, n_streams: int, every_s: float, n_faults: int) -> Report:
    """Keep greedy streams running while the process of a device is killed; see that nobody notices."""
    report, n_tied = Report(), 0
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=url, timeout=HUNG_S, limits=limits) as http:

        async def read(number: int) -> Chain:
            asked = ASKED | {"prompt": f"stream {number}"}
            chain, flaws = Chain(), list[str]()
            last_s, longest_s = None, 0.0
            try:
                async for chunk in chunks(http, COMPLETIONS, asked, flaws):
                    now_s = asyncio.get_running_loop().time()
                    longest_s = max(longest_s, now_s - last_s if last_s is not None else 0.0)
                    last_s = now_s
                    chain.add(chunk)
            except httpx2.HTTPError as error:
                flaws.append(repr(error))
            report.n_answers += 1
            report.n_tokens += len(chain.tokens)
            report.pauses_s.append(longest_s)
            report.wrong += [f"stream {number}: {flaw}" for flaw in flaws]
            return chain

        expected = await asyncio.gather(*map(read, range(n_streams)))
        report.n_answers = report.n_tokens = 0
        report.pauses_s.clear()

        async def ask(number: int) -> None:
            nonlocal n_tied
            chain = await read(number)
            flaw = expected[number].flaw(chain)
            report.wrong += [f"stream {number}: {flaw}"] if flaw else []
            n_tied += not flaw and chain.tokens != expected[number].tokens

        await befall(http, pid, kill, ask, report, n_streams=n_streams, every_s=every_s, n_faults=n_faults)
    print(f"{n_tied} of {report.n_answers} answers took the other way at a tie", flush=True)
    return report
