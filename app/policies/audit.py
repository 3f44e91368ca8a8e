"""The audit log of a policy: what changed, when, and who asked for it or, past this service, who signed."""

import asyncio
import time
from collections.abc import Sequence

from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.access.keyring import Principal
from app.chain.errors import ChainUnavailable, RpcError
from app.core.errors import NotFoundError
from app.core.timestamps import iso_ms, now_ms
from app.policies.models import AuditEntry, AuditLog, Change
from app.store.policies import AuditRecord, policy, policy_audit_log, record_policy_edit
from app.submission.context import Service
from idl.codec import Codec
from idl.transactions import OPTIONS, RawTransaction, instructions

_INSTRUCTION = "update_policy"
#: Where its accounts name the authority, and the policy.
_AUTHORITY, _POLICY = 0, 2
#: Shown of a change past this service while the chain does not give its transaction, or when that does not tell.
_UNKNOWN = "on-chain"
_MALFORMED = (KeyError, TypeError, ValueError, IndexError)
_AT_ONCE = 10
#: Transactions that are asked for on the way to one answer; the next answers ask for the others.
MAX_ASKED = 50
#: Seconds for which the node is not asked again for a transaction that it does not have, and of how many that is kept.
MISSING_FOR, _MAX_MISSING = 600.0, 10_000

#: When, by the process's clock, the node was last asked for a transaction that it did not have; the oldest first.
_missing: dict[str, float] = {}


async def log(service: Service, principal: Principal, identifier: str) -> AuditLog:
    """Return all changes of a policy, oldest first; a deleted one keeps its log. Raises ``policy_not_found``."""
    org = principal.org
    found = await service.db.read(lambda conn: policy(conn, org, identifier))
    if found is None:
        raise NotFoundError("policy_not_found")
    entries = await service.db.read(lambda conn: policy_audit_log(conn, org, identifier), in_thread=True)
    unsigned = [entry for entry in entries if entry.changed_by is None and _worth_asking(entry.signature or "")]
    if unsigned:
        await _find_signers(service, org, identifier, found.address, unsigned[:MAX_ASKED])
        entries = await service.db.read(lambda conn: policy_audit_log(conn, org, identifier), in_thread=True)
    # Of a long list every change holds two whole ones.
    return await asyncio.to_thread(lambda: AuditLog(data=[_shown(entry) for entry in entries]))


def _worth_asking(signature: str) -> bool:
    missed = _missing.get(signature)
    return missed is None or time.monotonic() - missed >= MISSING_FOR


def _shown(entry: AuditRecord) -> AuditEntry:
    return AuditEntry(
        timestamp=iso_ms(entry.timestamp),
        changed_by=entry.changed_by or _UNKNOWN,
        changes={name: Change.model_validate(change) for name, change in entry.changes.items()},
    )


async def _find_signers(
    service: Service, org: str, identifier: str, address: str, entries: Sequence[AuditRecord]
) -> None:
    """Note who signed these changes, as far as the chain gives their transactions."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def signer(entry: AuditRecord) -> str | None:
        async with limit:
            return await _signer(service, address, entry.signature or "")

    signers = await asyncio.gather(*map(signer, entries))

    def note(conn: Connection) -> None:
        known = {entry.version for entry in policy_audit_log(conn, org, identifier) if entry.changed_by is not None}
        for entry, signed_by in zip(entries, signers, strict=True):
            if signed_by is not None and entry.version not in known:
                record_policy_edit(
                    conn, org, identifier, version=entry.version, changed_by=signed_by, changes={}, now=now_ms()
                )

    await service.db.write(note)


async def _signer(service: Service, address: str, signature: str) -> str | None:
    """Return who signed a transaction's update of the policy at this address.

    None while the chain does not give the transaction; one that a node does not have is not asked for again for a
    while, one that does not tell never.
    """
    try:
        landed = await service.chain.call("getTransaction", [signature, OPTIONS])
        if landed:
            return _authority(landed, service.codec, Pubkey.from_string(address)) or _UNKNOWN
    except ChainUnavailable:
        return None
    except (RpcError, *_MALFORMED):
        pass
    _missing.pop(signature, None)
    _missing[signature] = time.monotonic()
    if len(_missing) > _MAX_MISSING:
        del _missing[next(iter(_missing))]
    return None


def _authority(landed: RawTransaction, codec: Codec, policy_address: Pubkey) -> str | None:
    """Return the authority of a transaction's update of a policy, whether it was called by itself or by a program."""
    for program, data, accounts in instructions(landed):
        if program != codec.program_id or len(accounts) <= _POLICY or accounts[_POLICY] != policy_address:
            continue
        decoded = codec.decode_instruction(data)
        if decoded and decoded[0] == _INSTRUCTION:
            return str(accounts[_AUTHORITY])
    return None
