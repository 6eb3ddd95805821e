"""Posts the commits of groups to webhooks, by the rules of Standard Webhooks (standardwebhooks.com).

A message for each commit, in order, at least once; repeats have the same `webhook-id`. It has ids and counts,
no text.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import json
import logging
import os
import re
import secrets
import socket
import ssl
import time
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kgray.domain import times
from kgray.domain.json_form import as_json
from kgray.errors import InputError, SettingsError, Unavailable
from kgray.memory.access import Webhook, Webhooks
from kgray.memory.results import Commit

if TYPE_CHECKING:
    from kgray.server.door import Door

LOOK_S = 1.0
_ANSWER_S = 15.0  # for a receiver to answer
_AT_ONCE, _OF_GROUP = 128, 4  # posts in flight, of all groups and of one
_MOST_IDS = 200  # in a list of a message
_SAVED_S = 1.0  # between two saves of a webhook's position: later posts are repeated after a kill
_URL = re.compile(r"https?://[!-~]{1,1000}")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")  # RFC 6052: an IPv4 address behind a gateway
_UNICAST = ipaddress.ip_network("2000::/3")  # the allocated global IPv6 addresses
_log = logging.getLogger("kgray.server")


def key_in(path: Path) -> bytes:
    """Return the key in a file that only its owner can read; create the file if it is missing."""
    try:
        with suppress(FileExistsError), open(path, "xb", opener=partial(os.open, mode=0o600)) as file:
            file.write(secrets.token_bytes(32))
        key = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"{path}: {error.strerror}") from None
    if len(key) < 32:
        raise SettingsError(f"{path} has {len(key)} bytes: a key of webhooks has 32 random bytes")
    return key


def checked_url(url: str) -> str:
    """Return the URL unchanged. Raises InputError if it cannot receive posts."""
    try:
        parts = urlsplit(url)
        usable = _URL.fullmatch(url) and parts.hostname and parts.port != 0 and "@" not in parts.netloc
    except ValueError:
        usable = False
    if not usable:
        raise InputError(
            "url must be http(s)://HOST[:PORT]/..., ASCII, without a user or password", field="url"
        )
    return url


class Posts:
    """The loop that posts; only one server of a store runs it."""

    def __init__(self, door: Door, *, key: bytes, private: bool) -> None:
        """key: the secrets are derived from it. private: receivers may have private addresses."""
        self._door, self._key, self._private = door, key, private
        self.webhooks = Webhooks(door.memory.store)
        self._going: dict[str, asyncio.Task[None]] = {}
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._of_group = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(_OF_GROUP))

    def secret_of(self, id_: str) -> str:
        """Return the secret of a webhook's signatures: `whsec_` and 256 bits in base64; in no store."""
        return "whsec_" + base64.b64encode(hmac.digest(self._key, id_.encode(), hashlib.sha256)).decode()

    async def run(self) -> None:
        """Post until it is cancelled."""
        while True:
            try:
                # Before the webhooks are read: a task that ends later may change its row after the read.
                self._going = {id_: task for id_, task in self._going.items() if not task.done()}
                webhooks = await self._door.call(self.webhooks.every)
                for webhook in webhooks:
                    due = webhook.again_at is None or webhook.again_at <= times.now()
                    if due and webhook.state != "dead" and webhook.id not in self._going:
                        self._going[webhook.id] = asyncio.create_task(self._serve(webhook))
            except Exception:  # noqa: BLE001 - the loop logs it and continues
                _log.exception("webhooks wait")
            await asyncio.sleep(LOOK_S)

    async def _serve(self, webhook: Webhook) -> None:
        """Post the new commits to a webhook."""
        try:
            head = (await self._door.head(webhook.of_group)).last_recorded
            if head > webhook.sent:
                await self._post_all(webhook, head)
        except Exception:  # noqa: BLE001 - as above
            _log.exception("webhook %s waits", webhook.id)

    async def _post_all(self, webhook: Webhook, head: int) -> None:
        note, counted = partial(self._door.call, self.webhooks.note, webhook.id), self._door.metrics.webhooks
        was = sent = webhook.sent
        changes, saved = await self._door.changes(webhook.of_group, sent, head), time.monotonic()
        for commit in changes.commits:
            try:
                async with self._of_group[webhook.of_group], self._turns:
                    await self._post(webhook, commit)
            except Unavailable as error:
                counted.labels("failed").inc()
                await note(was, sent, webhook.tries + 1 if sent == webhook.sent else 1, str(error))
                return
            counted.labels("delivered").inc()
            sent = commit.commit
            if time.monotonic() - saved > _SAVED_S:
                if not await note(was, sent):
                    return  # it was dropped, or has a new start
                was, saved = sent, time.monotonic()
        # A commit may have come after `head` was read.
        await note(was, max(changes.last if changes.more else head, sent))

    async def _post(self, webhook: Webhook, commit: Commit) -> None:
        from standardwebhooks import Webhook as Signer

        sent_at, id_ = times.to_datetime(times.now()), message_id(webhook.id, commit.commit)
        row = as_json(commit)
        lists = {name: row[name][:_MOST_IDS] for name in ("entries", "opened", "ended")}
        counts = {name: len(row[name]) for name in lists}
        data = {"group": webhook.of_group, "commit": commit.commit, **lists, "counts": counts}
        body = json.dumps({"type": "group.committed", "timestamp": row["at"], "data": data})
        signature = Signer(self.secret_of(webhook.id)).sign(id_, sent_at, body)
        headers = {
            "webhook-id": id_, "webhook-timestamp": str(int(sent_at.timestamp())),
            "webhook-signature": signature,
        }  # fmt: skip
        try:
            async with asyncio.timeout(_ANSWER_S):
                status = await _answered(webhook.url, body.encode(), headers, private=self._private)
        except TimeoutError:
            raise Unavailable(f"no answer within {_ANSWER_S:.0f} s") from None
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            raise Unavailable(f"no answer ({type(error).__name__})") from None
        if not 200 <= status < 300:  # a redirect is not followed
            raise Unavailable(f"answered {status}")


def message_id(webhook: str, commit: int) -> str:
    """Return the `webhook-id` of a message: every repeat has the same id."""
    return f"{webhook}_{commit}"


async def _answered(url: str, body: bytes, headers: Mapping[str, str], *, private: bool) -> int:
    """Return the status of the answer to a POST; connect to the same address that was checked."""
    parts = urlsplit(url)
    host, is_tls = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if is_tls else 80)
    addresses = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    address = next((row[4][0] for row in addresses if private or is_public(str(row[4][0]))), None)
    if address is None:
        raise Unavailable("the address is private: `kgray serve --private-webhooks` allows it")
    tls: dict[str, Any] = {"ssl": _tls(), "server_hostname": host} if is_tls else {}
    reader, writer = await asyncio.open_connection(str(address), port, **tls)
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        standard = {
            "host": parts.netloc,
            "content-type": "application/json",
            "content-length": str(len(body)),
        }
        lines = (
            f"{name}: {value}\r\n" for name, value in {**standard, "connection": "close", **headers}.items()
        )
        writer.write(f"POST {path} HTTP/1.1\r\n{''.join(lines)}\r\n".encode() + body)
        return int((await reader.readuntil(b"\r\n")).split()[1])
    except (IndexError, asyncio.LimitOverrunError):
        raise Unavailable("answered no HTTP") from None
    finally:
        writer.close()


_tls = cache(ssl.create_default_context)  # reads the system's certificates


def is_public(address: str) -> bool:
    """Tell whether an IP address is in a range of the public internet."""
    number: Any = ipaddress.ip_address(address.partition("%")[0])
    if number.version == 6:
        embedded = number.ipv4_mapped or number.sixtofour or (number.teredo or (None, None))[1]
        if number in _NAT64:
            embedded = ipaddress.IPv4Address(int(number) & 0xFFFFFFFF)
        if embedded is not None:
            return is_public(str(embedded))
        if number not in _UNICAST:
            return False
    return bool(number.is_global and not number.is_multicast)
