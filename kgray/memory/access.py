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
from kgray.memory.results import AuditEntry, NewKey
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

        bound = [(pattern, begin(pattern)) for pattern in self.groups]
        requested = [(name, name if (prefix := begin(name)) is None else prefix) for name in groups]
        return all(
            any(pattern == name if first is None else prefix.startswith(first) for pattern, first in bound)
            for name, prefix in requested
        )

    def allows(self, scope: str) -> bool:
        """Return whether the key has a scope."""
        return scope in self.scopes or "admin" in self.scopes

    def stands(self, at: Instant) -> bool:
        """Return whether the key is neither revoked nor expired."""
        return self.revoked_at is None and (self.expires_at is None or at < self.expires_at)

    def as_dict(self) -> dict[str, Any]:
        """Return the form that `kgray keys list --json` prints."""
        values = {"id": self.id, "groups": list(self.groups), "scopes": list(self.scopes), "rate": self.rate}
        return values | {
            name: show(getattr(self, name)) for name in ("created_at", "expires_at", "revoked_at")
        }


class Access:
    """The keys and the audit log of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(
        self, groups: Sequence[str], scopes: Sequence[str], *,
        expires: Instant | None = None, rate: int | None = None,
    ) -> NewKey:  # fmt: skip
        """Make a key. Raises InputError."""
        created = times.now()
        if not groups or not scopes:
            raise InputError("a key needs groups and scopes: --groups team --scopes read,add")
        for name in groups:
            if name != "*" and (plain := name.removesuffix("/*")):
                check_group(plain)
        if unknown := sorted({*scopes} - {*SCOPES}):
            raise InputError(f"scope {unknown[0]!r} is none of {', '.join(SCOPES)}", field="scopes")
        if expires is not None and expires <= created:
            raise InputError("it would have expired already")
        if rate is not None and rate < 1:
            raise InputError(f"rate is {rate}: use 1 or more")
        id_, secret = secrets.token_hex(6), secrets.token_urlsafe(32)

        def append(log: Appending) -> None:
            row = AccessKeyRow(
                id=id_, sequence=log.take_sequence(OWN), digest=_sha256(secret),
                groups=tuple(dict.fromkeys(groups)), scopes=tuple(dict.fromkeys(scopes)), rate=rate,
                created_at=created, expires_at=expires, revoked_at=None,
            )  # fmt: skip
            log.put(ACCESS_KEYS, OWN, row)

        self._store.append([OWN], append)
        return NewKey(id=id_, key=f"kg_{id_}_{secret}")

    def every(self) -> list[AccessKey]:
        """Return all keys, expired and revoked ones too, oldest first."""
        keys = (AccessKey(*row) for row in self._store.rows(ACCESS_KEYS.all, OWN))
        return sorted(keys, key=lambda key: key.sequence)

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

    def note(self, key: str, action: str, group: str, details: Mapping[str, Any]) -> None:
        """Add who asks for a correction, removal, key or webhook to the audit log; key: an id, or ""."""
        # A removal leaves no word here (R25). A person who knows a word can find 64 bits of its SHA-256.

        def digests(value: Any) -> Any:  # noqa: ANN401 - JSON
            if isinstance(value, str):
                return f"sha256:{_sha256(value)[:16]}"
            return [*map(digests, value)] if isinstance(value, list | tuple) else value

        values = {name: digests(value) if name in _WORDS else value for name, value in details.items()}

        def append(log: Appending) -> None:
            entry = AuditRow(
                sequence=log.take_sequence(OWN), at=times.now(), access_key=key, action=action,
                of_group=group, asked=canonical(values),
            )  # fmt: skip
            log.put(AUDIT, OWN, entry)

        self._store.append([OWN], append)

    def audited(self, sequence: int = 0) -> list[AuditEntry]:
        """Return the audit log after a sequence, oldest first. Raises InputError for an invalid sequence."""
        if not 0 <= sequence <= 1 << 62:
            raise InputError("after must be a sequence, or 0", field="after")
        return [
            AuditEntry(
                sequence=row.sequence, at=times.to_datetime(row.at), key=row.access_key, action=row.action,
                group=row.of_group, asked=json.loads(row.asked),
            )
            for row in self._store.rows(AUDIT.all, OWN, [sequence])
        ]  # fmt: skip


def presented(keys: Mapping[str, AccessKey], presented_key: str, at: Instant) -> AccessKey | None:
    """Return the key that a client presents; None where it is none that stands."""
    prefix, id_, secret = [*presented_key.split("_", 2), "", ""][:3]
    key = keys.get(id_)
    is_equal = hmac.compare_digest(_sha256(secret), key.digest if key else _sha256(""))
    return key if key is not None and is_equal and prefix == "kg" and key.stands(at) else None


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
        derived = {"made_at": show(self.made_at), "again_at": show(self.again_at), "state": self.state}
        return {k: v for k, v in self._asdict().items() if k not in ("sequence", "of_group")} | derived


class Webhooks:
    """The webhooks of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def every(self, group: str | None = None) -> list[Webhook]:
        """Return the webhooks of a group, None: of all; oldest first."""
        webhooks = (Webhook(*row) for row in self._store.rows(WEBHOOKS.all, OWN))
        return sorted(
            (webhook for webhook in webhooks if group in (None, webhook.of_group)),
            key=lambda webhook: webhook.sequence,
        )

    def add(self, group: str, url: str, start: Instant | None) -> Webhook:
        """Post the commits of a group after one to a URL; None: the later ones."""
        sent = self._store.heads([group])[group].last_recorded if start is None else start
        id_ = f"wh_{secrets.token_hex(8)}"

        def append(log: Appending) -> Webhook:
            webhook = Webhook(
                id=id_, sequence=log.take_sequence(OWN), of_group=group, url=url, made_at=times.now(),
                sent=sent, tries=0, again_at=None, fault="",
            )  # fmt: skip
            log.put(WEBHOOKS, OWN, webhook)
            return webhook

        return self._store.append([OWN], append)

    def drop(self, group: str, id_: str | None) -> None:
        """Forget a webhook; None: all of a group, which is being removed (R27). Raises NotFound."""
        webhooks = self.every(group) if id_ is None else [self.found(group, id_)]

        def append(log: Appending) -> None:
            for webhook in webhooks:
                log.drop(WEBHOOKS, OWN, (webhook.id,))

        if webhooks:
            self._store.append([OWN], append)

    def resend(self, group: str, id_: str, start: Instant | None) -> None:
        """Go on at once, a dead one too: from where it is, or after this commit. Raises NotFound."""
        webhook = self.found(group, id_)
        self.note(id_, None, webhook.sent if start is None else start)

    def note(self, id_: str, was: Instant | None, sent: Instant, tries: int = 0, fault: str = "") -> bool:
        """Note how far a webhook is, and the failures since; False where it is not there, or not at `was`."""
        again_at = None
        if 0 < tries <= len(RETRY_S):
            again_at = times.now() + int(RETRY_S[tries - 1] * times.SECOND)
        row, columns = (id_, sent, tries, again_at, fault), ("sent", "tries", "again_at", "fault")

        def append(log: Appending) -> bool:
            webhooks = log.rows(WEBHOOKS.all, OWN)
            if stands := any(webhook.id == id_ and was in (None, webhook.sent) for webhook in webhooks):
                log.patch(OWN, Patch(kind=WEBHOOKS, columns=columns, rows=(row,)))
            return stands

        return self._store.append([OWN], append)

    def found(self, group: str, id_: str) -> Webhook:
        """Return a webhook of a group. Raises NotFound."""
        webhook = next((candidate for candidate in self.every(group) if candidate.id == id_), None)
        if webhook is None:
            raise NotFound(f"the group has no webhook {id_[:80]!r}")
        return webhook
