"""The routes of keys, webhooks and the audit log."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import Request, Response
from starlette.responses import JSONResponse

from kgray.domain import times
from kgray.domain.json_form import as_json
from kgray.domain.records import check_group
from kgray.errors import NotBuilt, NotFound
from kgray.memory.access import AccessKey
from kgray.memory.results import NewKey
from kgray.server.door import At, Door, holder_of, noted
from kgray.server.models import Group, Identifier, KeyOf, Limit, Number, Since, WebhookOf
from kgray.server.problems import Forbidden
from kgray.server.webhooks import Posts, checked_url, message_id

_SECRET = {"cache-control": "no-store"}  # of an answer with a secret


async def audit(door: At, request: Request, after: Number = 0) -> Response:
    """Return the audit log of corrections, removals and keys, for the groups that the key reaches."""
    entries, key = await door.call(door.access.audited, after), holder_of(request)
    rows = [as_json(entry) for entry in entries if key is None or key.reaches(entry.group)]
    return JSONResponse({"entries": rows})  # as `handlers.reads`


async def keys(door: At, request: Request) -> Any:  # noqa: ANN401 - `replies.Keys`
    """Return the keys, without their secrets, that reach no more groups than the caller's key."""
    return {"keys": [key.as_dict() for key in await _visible_keys(door, request)]}


async def add_key(door: At, request: Request, response: Response, body: KeyOf) -> NewKey:
    """Make a key; the answer alone shows it. It reaches and lasts no further than the caller's key."""
    holder = holder_of(request)
    if holder is not None and not holder.covers(body.groups):
        raise Forbidden("the key does not reach these groups")
    expires = None if body.expires is None else times.given(body.expires, "expires")[0]
    ends = None if holder is None else holder.expires_at
    if ends is not None and (expires is None or expires > ends):
        raise Forbidden(f"the key expires at {times.show(ends)}: a key that it makes cannot expire later")
    await noted(door, request, "keys add", "", {"groups": body.groups, "scopes": body.scopes})
    make = partial(door.access.add, body.groups, body.scopes, expires=expires, rate=body.rate)
    made = await door.call(make)
    await door.call(door.guard.refresh)
    response.headers.update(_SECRET)
    return made


async def revoke_key(door: At, request: Request, name: Identifier) -> Any:  # noqa: ANN401 - `replies.Named`
    """Revoke a key for good."""
    if name not in {key.id for key in await _visible_keys(door, request)}:
        raise NotFound("there is no such key")
    await noted(door, request, "keys revoke", "", {"id": name})
    await door.call(door.access.revoke, name)
    await door.call(door.guard.refresh)
    return {"id": name, "revoked": True}


async def _visible_keys(door: Door, request: Request) -> list[AccessKey]:
    holder = holder_of(request)
    return [key for key in await door.call(door.access.every) if holder is None or holder.covers(key.groups)]


def _posts(door: Door, group: str) -> Posts:
    check_group(group)
    if door.posts is None:
        raise NotBuilt("this server posts to no webhooks: `kgray serve --webhooks FILE`")
    return door.posts


async def webhooks(door: At, group: Group) -> Any:  # noqa: ANN401 - `replies.Webhooks`
    """Return the webhooks of the group, with their last delivered commits and last failures."""
    rows = await door.call(_posts(door, group).webhooks.every, group)
    return {"webhooks": [row.as_dict() for row in rows]}


async def add_webhook(door: At, request: Request, response: Response, group: Group, body: WebhookOf) -> Any:  # noqa: ANN401 - `replies.NewWebhook`
    """Post the group's commits to a URL, from now on or after a commit; the answer shows the secret once."""
    posts, url = _posts(door, group), checked_url(body.url)
    await noted(door, request, "webhooks add", group, {"url": url, "since": body.since})
    webhook = await door.call(posts.webhooks.add, group, url, body.since)
    response.headers.update(_SECRET)
    return webhook.as_dict() | {"secret": posts.secret_of(webhook.id)}


async def deliveries(door: At, group: Group, name: Identifier, limit: Limit = 100) -> Any:  # noqa: ANN401
    """Return a webhook with its undelivered commits, oldest first."""
    webhook = await door.call(_posts(door, group).webhooks.found, group, name)
    # Not `Door.changes`, which streams share: it may be a moment old.
    new = await door.read(door.memory.changes, group=group, since=webhook.sent)
    waiting = [
        {"id": message_id(name, commit.commit), "commit": commit.commit, "at": as_json(commit.at)}
        for commit in new.commits
    ]
    has_more = new.more or len(waiting) > limit
    return webhook.as_dict() | {"waiting": waiting[:limit], "more": has_more}


async def drop_webhook(door: At, request: Request, group: Group, name: Identifier) -> Any:  # noqa: ANN401
    """Forget a webhook."""
    await _change(door, request, "drop", group, name)
    return {"id": name, "dropped": True}


async def resend(
    door: At, request: Request, response: Response, group: Group, name: Identifier, body: Since
) -> Any:  # noqa: ANN401
    """Post again at once, also for a webhook given up: undelivered commits, or all after a commit."""
    await _change(door, request, "resend", group, name, since=body.since)
    response.status_code = 202
    return {"id": name}


async def _change(door: Door, request: Request, verb: str, group: str, name: str, **options: Any) -> None:  # noqa: ANN401
    """Change an existing webhook, after a note in the audit log."""
    webhooks = _posts(door, group).webhooks
    await door.call(webhooks.found, group, name)
    await noted(door, request, f"webhooks {verb}", group, {"id": name, **options})
    await door.call(getattr(webhooks, verb), group, name, *options.values())
