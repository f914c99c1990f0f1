"""The keys in force and what is left of their limits; a file of them is read again when it changes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import structlog

from cobali_ray.api.door.clock import ApiClock
from cobali_ray.api.door.keys import NOBODY, Caller, Ring, Terms, listed, parse
from cobali_ray.api.door.quota import Quota
from cobali_ray.errors import ConfigError
from cobali_ray.settings import read_text

POLL_S = 1.0

_log = structlog.get_logger("cobali_ray.api")


class Keyring:
    """One per ingress, used on its event loop."""

    def __init__(
        self, keys: tuple[str, ...], file: Path | None, clock: ApiClock, *, n_ingress: int = 1
    ) -> None:
        """Read the file. Raises ConfigError where it cannot be used."""
        self._keys, self._file, self._clock, self._n_ingress = keys, file, clock, n_ingress
        self._quotas: dict[str, Quota] = {}
        self._checked_s = clock.now()
        self._stamp = None if file is None else _stamp(file)
        self.ring = read_keys(keys, file)

    @property
    def locked(self) -> bool:
        """Whether requests need a key."""
        return bool(self.ring.callers)

    def terms_of(self, tenant: str) -> Terms | None:
        """Return what a key allows, by its name; None where there is no such key."""
        if not self.locked:
            return None if tenant else NOBODY.terms
        return next((terms for _, name, terms in self.ring.callers if name == tenant), None)

    async def refresh(self) -> None:
        """Read the file again if it has changed, looking once a second; a broken one changes nothing."""
        now_s = self._clock.now()
        if self._file is None or now_s - self._checked_s < POLL_S:
            return
        self._checked_s = now_s
        if (stamp := _stamp(self._file)) == self._stamp:
            return
        self._stamp = stamp
        try:
            self.ring = await asyncio.to_thread(read_keys, self._keys, self._file)
        except ConfigError as error:
            _log.error("api_keys_not_reloaded", error=str(error))
            return
        _log.info("api_keys_reloaded", n_keys=len(self.ring.callers))

    def quota(self, caller: Caller) -> Quota:
        """Return what is left of a caller's limits; changed terms begin anew."""
        quota = self._quotas.get(caller.tenant)
        if quota is None:
            quota = Quota(caller.terms, self._n_ingress, self._clock.now())
            self._quotas[caller.tenant] = quota
        elif quota.terms != caller.terms:
            quota.renew(caller.terms, self._clock.now())
        return quota


def _stamp(file: Path) -> tuple[int, int, int] | None:
    """Return what changes when a file is written, replaced or let be read; None if it is not there."""
    try:
        stat = file.stat()
    except OSError:
        return None
    return stat.st_ctime_ns, stat.st_size, stat.st_ino


def read_keys(keys: tuple[str, ...], file: Path | None) -> Ring:
    """Return the ring of plain keys and of those in a file. Raises ConfigError."""
    return listed(keys) if file is None else listed(keys).joined(parse(read_text("api_keys_file", file)))
