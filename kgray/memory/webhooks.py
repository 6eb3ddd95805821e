"""Webhooks: where the commits of a group are posted to, and how far that is, in the store (`kinds.OWN`).

The numbered commits of a group are the outbox. A webhook keeps the number of the last one that was taken, so
a commit writes nothing for it, and none is left out.
"""

from __future__ import annotations

import secrets
from typing import Any, NamedTuple

from kgray import times
from kgray.errors import NotFound
from kgray.kinds import ALL, OWN, WEBHOOKS
from kgray.ports import Appending, Patch, Store
from kgray.times import Instant, show

RETRY_S = (5.0, 300.0, 1800.0, 7200.0, 18_000.0)  # after each failure in a row; then it is dead


class Webhook(NamedTuple):
    """A row of `kinds.WEBHOOKS`."""

    id: str
    sequence: int
    group: str
    url: str
    made_at: Instant
    sent: Instant
    tries: int = 0
    again_at: Instant | None = None
    fault: str = ""

    @property
    def state(self) -> str:
        """Return active, failing, or dead: it is not tried again before `resend`."""
        return "dead" if self.tries > len(RETRY_S) else "failing" if self.tries else "active"

    def as_dict(self) -> dict[str, Any]:
        """Return the form in which the server shows it."""
        shown = {"made_at": show(self.made_at), "again_at": show(self.again_at), "state": self.state}
        return {k: v for k, v in self._asdict().items() if k not in ("sequence", "group")} | shown


class Webhooks:
    """The webhooks of one store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def every(self, group: str | None = None) -> list[Webhook]:
        """Return the webhooks of a group, None: of all; oldest first."""
        found = (Webhook(*row) for row in self._store.rows(ALL["webhooks"], OWN))
        return sorted((one for one in found if group in (None, one.group)), key=lambda one: one.sequence)

    def add(self, group: str, url: str, since: Instant | None) -> Webhook:
        """Post the commits of a group after one to a URL; None: the later ones."""
        sent = self._store.heads([group])[group].last_recorded if since is None else since
        id_ = f"wh_{secrets.token_hex(8)}"

        def append(log: Appending) -> Webhook:
            made = Webhook(id_, log.take_sequence(OWN), group, url, times.now(), sent)
            log.put(WEBHOOKS, OWN, tuple(made))
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
        """Note how far a webhook is, and the failures since.

        was: how far it was; where it is elsewhere now, or dropped, nothing is noted, and False returned
        """
        again_at = None
        if 0 < tries <= len(RETRY_S):
            again_at = times.now() + int(RETRY_S[tries - 1] * times.SECOND)
        row, columns = (id_, sent, tries, again_at, fault), ("sent", "tries", "again_at", "fault")

        def append(log: Appending) -> bool:
            there = (Webhook(*row) for row in log.rows(ALL["webhooks"], OWN))
            if stands := any(one.id == id_ and was in (None, one.sent) for one in there):
                log.patch(OWN, Patch(kind=WEBHOOKS, columns=columns, rows=(row,)))
            return stands

        return self._store.append([OWN], append)

    def found(self, group: str, id_: str) -> Webhook:
        """Return a webhook of a group. Raises NotFound."""
        for one in self.every(group):
            if one.id == id_:
                return one
        raise NotFound(f"the group has no webhook {id_[:80]!r}")
