"""Keys and the audit log on both stores: they are stored outside the groups."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from kgray.domain import times
from kgray.domain.records import check_group
from kgray.errors import InputError, NotFound
from kgray.memory.access import Access, presented
from kgray.memory.reads import GroupReads
from kgray.schema import kinds
from kgray.storage.ledger import pending_groups
from tests.graph.stores import EMBEDDED


def log_of(store, group, start):
    return asyncio.run(GroupReads(store).log(group=group, after=start, limit=10))


def test_stored_keys_contain_no_secret(stores, store):
    access, second_access = Access(store), Access(stores.open())
    changes_before = access.changes()
    created = access.add(["team", "project-/*"], ["read", "add"], rate=5)
    id_, key = created.id, created.key

    stored_key = {item.id: item for item in second_access.every()}[id_]
    assert second_access.changes() > changes_before
    assert (stored_key.groups, stored_key.scopes, stored_key.rate) == (
        ("team", "project-/*"),
        ("read", "add"),
        5,
    )
    assert key.split("_", 2)[2] not in repr(stored_key)
    reached = [group for group in ("team", "teams", "project-7", "other") if stored_key.reaches(group)]
    assert reached == ["team", "project-7"]
    assert [stored_key.allows(scope) for scope in ("read", "correct")] == [True, False]
    keys = {id_: stored_key}
    assert presented(keys, key, times.now()) is stored_key
    for wrong in (key[:-1], f"{key}x", key.replace("kg_", "gk_"), f"kg_{id_}_", "", "kg"):
        assert presented(keys, wrong, times.now()) is None
    change = second_access.changes()
    access.revoke(id_)
    assert second_access.changes() > change
    assert not {item.id: item for item in second_access.every()}[id_].stands(times.now())
    with pytest.raises(NotFound):
        access.revoke("nothing")


@EMBEDDED
def test_the_audit_log_lists_entries_after_a_sequence(store, group):
    access = Access(store)
    access.note("k1", "remove", group, {"episodes": ["a\u00e9"]})
    access.note("", "retract", group, {})

    first, second = [entry for entry in access.audited() if entry.group == group]
    digest = "sha256:" + hashlib.sha256("a\u00e9".encode()).hexdigest()[:16]
    assert (first.key, first.action, first.asked) == ("k1", "remove", {"episodes": [digest]})
    assert second in access.audited(first.sequence)
    assert first not in access.audited(first.sequence)


@EMBEDDED
@pytest.mark.parametrize("start", [(1 << 62) + 1, 1 << 64, -1])
def test_an_invalid_sequence_gets_a_clear_error(store, group, start):
    with pytest.raises(InputError, match="after must be a sequence, or 0"):
        Access(store).audited(start)
    with pytest.raises(InputError, match="after must be a sequence, or 0"):
        log_of(store, group, start)
    assert Access(store).audited(1 << 62) == []
    assert log_of(store, group, 1 << 62).episodes == ()


def test_keys_and_audit_entries_belong_to_no_user_group(store):
    access = Access(store)
    access.add(["*"], ["admin"])
    access.note("", "merge", "team", {})

    assert kinds.OWN not in store.heads()
    assert kinds.OWN not in store.counts()
    assert kinds.OWN not in pending_groups(store)
    with pytest.raises(InputError):
        check_group(kinds.OWN)
