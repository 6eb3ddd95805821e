"""Who may ask for what: keys, groups and scopes, requests a second, Host and Origin."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Collection
from functools import lru_cache
from urllib.parse import urlsplit

from kgray import times
from kgray.errors import Denied
from kgray.http.problems import Forbidden, Misdirected, TooMany
from kgray.memory.access import Access, AccessKey, presented

OPEN = frozenset({"/healthz", "/readyz", "/openapi.json"})  # paths that need no key
_LOCAL = ("localhost", "127.0.0.1", "::1", "[::1]")
REFRESH_S = 1.0  # within this time the server knows of a key that was added or revoked


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Guard:
    """Checks requests. Without any key, a caller on loopback may do what the command line may."""

    def __init__(self, access: Access, *, host: str, names: Collection[str] = ()) -> None:
        """Read the keys.

        host    the address that is served; a key is demanded unless it is loopback
        names   further names of this server, for Host and Origin; without any, on another address than
                loopback, all are taken: a key is needed there, which another site's script does not have
        """
        self._access = access
        self._only_keys = not _is_loopback(host)
        self._names = {*names, *_LOCAL, host} if names or not self._only_keys else set()
        self._keys: dict[str, AccessKey] = {}
        self._change = -1
        self._spent: dict[str, tuple[float, float]] = {}  # key -> (requests left, when that was)
        self.refresh()

    def refresh(self) -> None:
        """Read the keys where they have changed; blocks."""
        change = self._access.changes()
        if change != self._change:
            self._keys, self._change = {key.id: key for key in self._access.every()}, change

    def check_names(self, host: str | None, origin: str | None) -> None:
        """Raise Misdirected where Host or Origin is another's (DNS rebinding)."""
        if not self._names:
            return
        if host is None or _name_of(f"//{host}") not in self._names:
            raise Misdirected("this server has another name: `kgray serve --name NAME` adds one")
        if origin is not None and _name_of(origin) not in self._names:
            raise Misdirected("pages of another origin may not ask this server")

    def caller(self, authorization: str | None) -> AccessKey | None:
        """Return the key that is presented; None = none is needed. Raises Denied, TooMany.

        One is needed once there is one, revoked or not, and for any address but loopback.
        """
        if not (self._only_keys or self._keys):
            return None
        kind, _, given = (authorization or "").partition(" ")
        found = presented(self._keys, given.strip(), times.now()) if kind.lower() == "bearer" else None
        if found is None:
            said = "a key is needed that stands: Authorization: Bearer KEY (`kgray keys add` makes one)"
            raise Denied(said)
        if (rate := found.rate) is not None:  # of these requests each second, what is left over lasts one
            now = time.monotonic()
            left, at = self._spent.get(found.id, (rate, now))
            left = min(rate, left + (now - at) * rate)
            if left < 1:
                raise TooMany(rate)
            self._spent[found.id] = left - 1, now
        return found


def check_scope(key: AccessKey | None, scope: str, group: str | None) -> None:
    """Raise Forbidden, alike for groups that exist or not, where a key does not allow this."""
    if key is None:
        return
    if group is not None and not key.reaches(group):
        raise Forbidden("the key does not reach this group")
    if not key.allows(scope):
        raise Forbidden(f"the key lacks the scope {scope}")


@lru_cache(maxsize=256)
def _name_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
