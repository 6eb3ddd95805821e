"""Keys of the HTTP server, and the audit log of corrections and removals, in the store (`kinds.OWN`).

A key is `kg_ID_SECRET`. Its secret has 256 random bits, so SHA-256 of it needs no salt and no slow hash.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kgray import times
from kgray.errors import InputError, NotFound
from kgray.kinds import ACCESS_KEYS, ALL, AUDIT, OWN
from kgray.ports import Appending, Patch, Store
from kgray.records import canonical, check_group
from kgray.times import Instant, show

SCOPES = ("read", "add", "correct", "remove", "admin")


@dataclass(frozen=True, slots=True)
class AccessKey:
    """A key without its secret: a row of `kinds.ACCESS_KEYS`.

    groups  names, `PREFIX/*` for every name that begins with PREFIX, `*` for all
    scopes  of SCOPES; admin includes the others
    rate    requests a second; None = unbounded
    """

    id: str
    sequence: int
    digest: str
    groups: tuple[str, ...]
    scopes: tuple[str, ...]
    rate: int | None
    created_at: Instant
    expires_at: Instant | None
    revoked_at: Instant | None

    def reaches(self, group: str) -> bool:
        """Whether it is bound to the group, whether or not that exists."""
        return self.covers([group])

    def covers(self, groups: Sequence[str]) -> bool:
        """Whether it reaches every group that a key bound to these would reach."""
        return all(any(_covers(own, name) for own in self.groups) for name in groups)

    def allows(self, scope: str) -> bool:
        """Whether it has a scope."""
        return scope in self.scopes or "admin" in self.scopes

    def stands(self, now: Instant) -> bool:
        """Whether it was neither revoked nor has expired."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray keys list --json` prints."""
        made = {"id": self.id, "groups": list(self.groups), "scopes": list(self.scopes), "rate": self.rate}
        return made | {name: show(getattr(self, name)) for name in ("created_at", "expires_at", "revoked_at")}


class Access:
    """The keys and the audit log of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(
        self, groups: Sequence[str], scopes: Sequence[str], *,
        expires: Instant | None = None, rate: int | None = None,
    ) -> tuple[str, str]:  # fmt: skip
        """Make a key; return its id, and the key, which is not kept. Raises InputError."""
        now = times.now()
        if not groups or not scopes:
            raise InputError("a key needs groups and scopes: --groups team --scopes read,add")
        for name in groups:
            if name != "*" and (plain := name.removesuffix("/*")):
                check_group(plain)
        if unknown := sorted({*scopes} - {*SCOPES}):
            raise InputError(f"scope {unknown[0]!r} is none of {', '.join(SCOPES)}", field="scopes")
        if expires is not None and expires <= now:
            raise InputError("it would have expired already")
        if rate is not None and rate < 1:
            raise InputError(f"rate is {rate}: use 1 or more")
        id_, secret = secrets.token_hex(6), secrets.token_urlsafe(32)
        bound = tuple(dict.fromkeys(groups)), tuple(dict.fromkeys(scopes))
        facts = (_digest(secret), *bound, rate, now, expires)

        def append(log: Appending) -> None:
            log.put(ACCESS_KEYS, OWN, (id_, log.take_sequence(OWN), *facts, None))

        self._store.append([OWN], append)
        return id_, f"kg_{id_}_{secret}"

    def every(self) -> list[AccessKey]:
        """Return all keys, expired and revoked ones too, oldest first."""
        found = (AccessKey(*row) for row in self._store.rows(ALL["access_keys"], OWN))
        return sorted(found, key=lambda key: key.sequence)

    def revoke(self, id_: str) -> None:
        """Revoke a key; again: no change. Raises NotFound."""
        if id_ not in {key.id for key in self.every()}:
            raise NotFound(f"there is no key {id_!r}: `kgray keys list` shows their ids")

        def append(log: Appending) -> None:
            log.take_sequence(OWN)  # tells servers that something has changed
            log.patch(OWN, Patch(kind=ACCESS_KEYS, columns=("revoked_at",), rows=((id_, times.now()),)))

        self._store.append([OWN], append)

    def changes(self) -> int:
        """Return a number that grows with each change of the keys, and with each entry of the audit log."""
        return self._store.heads([OWN])[OWN].last

    def note(self, key: str, action: str, group: str, asked: Mapping[str, Any]) -> None:
        """Add who asks for a correction, removal, key or webhook to the audit log; key: an id, or "".

        Names, surfaces, URLs and ids of clients are kept as digests: a removal leaves no word here (R25).
        """

        def append(log: Appending) -> None:
            what = {name: _digests(value) if name in _WORDS else value for name, value in asked.items()}
            told = (key, action, group, canonical(what))
            log.put(AUDIT, OWN, (log.take_sequence(OWN), times.now(), *told))

        self._store.append([OWN], append)

    def audited(self, after: int = 0) -> list[dict[str, Any]]:
        """Return the audit log behind a sequence, oldest first. Raises InputError for what is none."""
        if not 0 <= after <= 1 << 62:
            raise InputError("after must be a sequence, or 0", field="after")
        return [
            {"sequence": sequence, "at": show(at), "key": key, "action": action, "group": group}
            | {"asked": json.loads(asked)}
            for sequence, at, key, action, group, asked in self._store.rows(ALL["audit"], OWN, [after])
        ]


def _covers(own: str, other: str) -> bool:
    """Whether what a key is bound to has every group that another name or pattern stands for."""
    begin, within = (
        name.removesuffix("*").removesuffix("/") if name.endswith("/*") or name == "*" else None
        for name in (own, other)
    )
    return own == other if begin is None else (other if within is None else within).startswith(begin)


def presented(keys: Mapping[str, AccessKey], given: str, now: Instant) -> AccessKey | None:
    """Return the key that a client presents; None where it is none that stands."""
    prefix, id_, secret = [*given.split("_", 2), "", ""][:3]
    key = keys.get(id_)
    same = hmac.compare_digest(_digest(secret), key.digest if key else _digest(""))
    return key if key is not None and same and prefix == "kg" and key.stands(now) else None


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode(errors="replace")).hexdigest()


_WORDS = frozenset({"entities", "episodes", "source", "surfaces", "url"})  # of `asked`: may be words


def _digests(value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return strings as the first 64 bits of their SHA-256, so that who knows one can find it."""
    if isinstance(value, str):
        return f"sha256:{hashlib.sha256(value.encode()).hexdigest()[:16]}"
    return [_digests(one) for one in value] if isinstance(value, list | tuple) else value
