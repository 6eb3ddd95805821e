"""Data of the HTTP server in the store's own group (`kinds.OWN`): keys, the audit log, webhooks.

A key is `kg_ID_SECRET`. Its secret has 256 random bits, so SHA-256 of it needs no salt and no slow hash. The
audit log has corrections and removals. A webhook is where the commits of a group are posted to: these are
its outbox, and its row has the number of the last accepted commit, so no commit is skipped.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from kgray.domain import times
from kgray.domain.records import canonical, check_group
from kgray.domain.times import Instant, show
from kgray.errors import InputError, NotFound
from kgray.ports import Appending, Patch, Store
from kgray.schema.kinds import ACCESS_KEYS, AUDIT, OWN, WEBHOOKS, AccessKeyRow, AuditRow, WebhookRow

SCOPES = ("read", "add", "correct", "remove", "admin")
_WORDS = frozenset({"entities", "episodes", "source", "surfaces", "url"})  # of an audit: may be words
RETRY_S = (5.0, 300.0, 1800.0, 7200.0, 18_000.0)  # after each failure of a webhook in a row; then it is dead


class AccessKey(AccessKeyRow):
    """A key without its secret.

    groups  names, `PREFIX/*` for every name that begins with PREFIX, `*` for all
    scopes  some of SCOPES; admin includes the others
    """

    __slots__ = ()

    def reaches(self, group: str) -> bool:
        """Return whether the key is bound to the group, which need not exist."""
        return self.covers([group])

    def covers(self, groups: Sequence[str]) -> bool:
        """Return whether the key reaches all groups of these names and patterns."""

        def begin(name: str) -> str | None:
            """Return the common beginning of the names of a pattern; None for a plain name."""
            return name[:-1].removesuffix("/") if name.endswith("/*") or name == "*" else None

        bound = [(own, begin(own)) for own in self.groups]
        asked = [(name, name if (within := begin(name)) is None else within) for name in groups]
        return all(
            any(own == name if first is None else within.startswith(first) for own, first in bound)
            for name, within in asked
        )

    def allows(self, scope: str) -> bool:
        """Return whether the key has a scope."""
        return scope in self.scopes or "admin" in self.scopes

    def stands(self, now: Instant) -> bool:
        """Return whether the key is neither revoked nor expired."""
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

        def append(log: Appending) -> None:
            made = AccessKeyRow(
                id=id_, sequence=log.take_sequence(OWN), digest=_sha256(secret),
                groups=tuple(dict.fromkeys(groups)), scopes=tuple(dict.fromkeys(scopes)), rate=rate,
                created_at=now, expires_at=expires, revoked_at=None,
            )  # fmt: skip
            log.put(ACCESS_KEYS, OWN, made)

        self._store.append([OWN], append)
        return id_, f"kg_{id_}_{secret}"

    def every(self) -> list[AccessKey]:
        """Return all keys, expired and revoked ones too, oldest first."""
        found = (AccessKey(*row) for row in self._store.rows(ACCESS_KEYS.all, OWN))
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
        """Add who asks for a correction, removal, key or webhook to the audit log; key: an id, or ""."""
        # A removal leaves no word here (R25). Who knows a word can find 64 bits of its SHA-256.

        def digests(value: Any) -> Any:  # noqa: ANN401 - JSON
            if isinstance(value, str):
                return f"sha256:{_sha256(value)[:16]}"
            return [*map(digests, value)] if isinstance(value, list | tuple) else value

        what = {name: digests(value) if name in _WORDS else value for name, value in asked.items()}

        def append(log: Appending) -> None:
            entry = AuditRow(
                sequence=log.take_sequence(OWN), at=times.now(), access_key=key, action=action,
                of_group=group, asked=canonical(what),
            )  # fmt: skip
            log.put(AUDIT, OWN, entry)

        self._store.append([OWN], append)

    def audited(self, after: int = 0) -> list[dict[str, Any]]:
        """Return the audit log after a sequence, oldest first. Raises InputError for an invalid sequence."""
        if not 0 <= after <= 1 << 62:
            raise InputError("after must be a sequence, or 0", field="after")
        return [
            {
                "sequence": row.sequence, "at": show(row.at), "key": row.access_key, "action": row.action,
                "group": row.of_group, "asked": json.loads(row.asked),
            }
            for row in self._store.rows(AUDIT.all, OWN, [after])
        ]  # fmt: skip


def presented(keys: Mapping[str, AccessKey], given: str, now: Instant) -> AccessKey | None:
    """Return the key that a client presents; None where it is none that stands."""
    prefix, id_, secret = [*given.split("_", 2), "", ""][:3]
    key = keys.get(id_)
    same = hmac.compare_digest(_sha256(secret), key.digest if key else _sha256(""))
    return key if key is not None and same and prefix == "kg" and key.stands(now) else None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()


class Webhook(WebhookRow):
    """An address that receives the commits of a group."""

    __slots__ = ()

    @property
    def state(self) -> str:
        """Return active, failing, or dead: it is not tried again before `resend`."""
        return "dead" if self.tries > len(RETRY_S) else "failing" if self.tries else "active"

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        shown = {"made_at": show(self.made_at), "again_at": show(self.again_at), "state": self.state}
        return {k: v for k, v in self._asdict().items() if k not in ("sequence", "of_group")} | shown


class Webhooks:
    """The webhooks of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def every(self, group: str | None = None) -> list[Webhook]:
        """Return the webhooks of a group, None: of all; oldest first."""
        found = (Webhook(*row) for row in self._store.rows(WEBHOOKS.all, OWN))
        return sorted((one for one in found if group in (None, one.of_group)), key=lambda one: one.sequence)

    def add(self, group: str, url: str, since: Instant | None) -> Webhook:
        """Post the commits of a group after one to a URL; None: the later ones."""
        sent = self._store.heads([group])[group].last_recorded if since is None else since
        id_ = f"wh_{secrets.token_hex(8)}"

        def append(log: Appending) -> Webhook:
            made = Webhook(
                id=id_, sequence=log.take_sequence(OWN), of_group=group, url=url, made_at=times.now(),
                sent=sent, tries=0, again_at=None, fault="",
            )  # fmt: skip
            log.put(WEBHOOKS, OWN, made)
            return made

        return self._store.append([OWN], append)

    def drop(self, group: str, id_: str | None) -> None:
        """Forget a webhook; None: all of a group, which is being removed (R27). Raises NotFound."""
        these = self.every(group) if id_ is None else [self.found(group, id_)]

        def append(log: Appending) -> None:
            for one in these:
                log.drop(WEBHOOKS, OWN, (one.id,))

        if these:
            self._store.append([OWN], append)

    def resend(self, group: str, id_: str, since: Instant | None) -> None:
        """Go on at once, a dead one too: from where it is, or after this commit. Raises NotFound."""
        found = self.found(group, id_)
        self.note(id_, None, found.sent if since is None else since)

    def note(self, id_: str, was: Instant | None, sent: Instant, tries: int = 0, fault: str = "") -> bool:
        """Note how far a webhook is, and the failures since; False where it is not there, or not at `was`."""
        again_at = None
        if 0 < tries <= len(RETRY_S):
            again_at = times.now() + int(RETRY_S[tries - 1] * times.SECOND)
        row, columns = (id_, sent, tries, again_at, fault), ("sent", "tries", "again_at", "fault")

        def append(log: Appending) -> bool:
            there = log.rows(WEBHOOKS.all, OWN)
            if stands := any(one.id == id_ and was in (None, one.sent) for one in there):
                log.patch(OWN, Patch(kind=WEBHOOKS, columns=columns, rows=(row,)))
            return stands

        return self._store.append([OWN], append)

    def found(self, group: str, id_: str) -> Webhook:
        """Return a webhook of a group. Raises NotFound."""
        found = next((one for one in self.every(group) if one.id == id_), None)
        if found is None:
            raise NotFound(f"the group has no webhook {id_[:80]!r}")
        return found
