"""The audit log of a policy: each change with its time and its author.

The author is the API key or person that requested the change. A change made without this service shows the address
that signed it.
"""

import asyncio
import time
from collections.abc import Sequence

from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.chain.errors import ChainUnavailable, RpcError
from app.core.actors import Actor
from app.policies.models import AuditEntry, AuditLog
from app.policies.service import missing
from app.store.policies import AuditRecord, policy, policy_audit_log, record_policy_edit
from app.submission.context import Service
from idl.codec import Codec
from idl.transactions import OPTIONS, RawTransaction, instructions

_INSTRUCTION = "update_policy"
#: Positions of the authority and the policy among the accounts of `update_policy`.
_AUTHORITY, _POLICY = 0, 2
#: Shown as the author if the chain does not return the transaction, or the transaction does not reveal a signer.
UNKNOWN = Actor("chain", "on-chain")
_MALFORMED = (KeyError, TypeError, ValueError, IndexError)
_CONCURRENT = 10
#: Maximum number of transactions that one request fetches. Later requests fetch the rest.
MAX_ASKED = 50
#: Seconds before the node is asked again for a transaction that it did not return, and maximum number of such
#: transactions to remember.
MISSING_FOR, _MAX_MISSING = 600.0, 10_000

#: Monotonic time of the last failed request for each missing transaction, oldest first.
_missing: dict[str, float] = {}


async def log(service: Service, principal: Principal, identifier: str) -> AuditLog:
    """Return all changes to a policy, oldest first. A deleted policy keeps its log. Raises ``policy_not_found``."""
    org = principal.org
    found = await service.db.read(lambda conn: policy(conn, org, identifier))
    if found is None:
        raise await missing(service, org, identifier)
    entries = await service.db.read(lambda conn: policy_audit_log(conn, org, identifier), in_thread=True)
    unknown = [entry for entry in entries if entry.changed_by is None and not _is_missing(entry.signature)]
    if unknown:
        await _store_signers(service, org, identifier, Pubkey.from_string(found.address), unknown[:MAX_ASKED])
        entries = await service.db.read(lambda conn: policy_audit_log(conn, org, identifier), in_thread=True)
    # Runs in a thread, because each change of a long allowlist holds the whole list twice.
    return await asyncio.to_thread(lambda: AuditLog(data=[_shown(entry) for entry in entries]))


def _is_missing(signature: str | None) -> bool:
    missed = _missing.get(signature or "")
    return missed is not None and time.monotonic() - missed < MISSING_FOR


def _shown(entry: AuditRecord) -> AuditEntry:
    actor = entry.changed_by or UNKNOWN
    return AuditEntry.of(entry, changed_by=actor.id, actor=actor)


async def _store_signers(
    service: Service, org: str, identifier: str, address: Pubkey, entries: Sequence[AuditRecord]
) -> None:
    """Store the signers of these changes, except where the chain does not return the transaction."""
    limit = asyncio.Semaphore(_CONCURRENT)

    async def signer(entry: AuditRecord) -> Actor | None:
        async with limit:
            return await _signer(service, address, entry.signature or "")

    signers = await asyncio.gather(*map(signer, entries))

    now = service.clock.seen_ms()

    def store(conn: Connection) -> None:
        known = {entry.version for entry in policy_audit_log(conn, org, identifier) if entry.changed_by is not None}
        for entry, signed_by in zip(entries, signers, strict=True):
            if signed_by is not None and entry.version not in known:
                record_policy_edit(
                    conn, org, identifier, version=entry.version, changed_by=signed_by, changes={}, now=now
                )

    await service.db.write(store)


async def _signer(service: Service, address: Pubkey, signature: str) -> Actor | None:
    """Return the signer of a transaction's update of this policy, or None if the transaction is missing or malformed.

    A missing or malformed transaction is not fetched again for a while. For a transaction without such an update, the
    signer UNKNOWN is stored, and the transaction is never fetched again.
    """
    try:
        landed = await service.chain.call("getTransaction", [signature, OPTIONS])
        if landed:
            return _authority(landed, service.codec, address) or UNKNOWN
    except ChainUnavailable:
        return None
    except (RpcError, *_MALFORMED):
        pass
    _missing.pop(signature, None)
    _missing[signature] = time.monotonic()
    if len(_missing) > _MAX_MISSING:
        del _missing[next(iter(_missing))]
    return None


def _authority(landed: RawTransaction, codec: Codec, policy_address: Pubkey) -> Actor | None:
    """Return the authority of a transaction's policy update, whether top-level or called by another program."""
    for program, data, accounts in instructions(landed):
        if program == codec.program_id and len(accounts) > _POLICY and accounts[_POLICY] == policy_address:
            decoded = codec.decode_instruction(data)
            if decoded and decoded[0] == _INSTRUCTION:
                return Actor("chain", str(accounts[_AUTHORITY]))
    return None
