"""The audit log of a policy: what changed, when, and who asked for it or, past this service, who signed."""

import asyncio
import base64
from collections.abc import Sequence

from solders.pubkey import Pubkey
from solders.transaction import VersionedTransaction
from sqlalchemy import Connection

from app.chain.errors import ChainUnavailable, RpcError
from app.errors import NotFoundError
from app.keys import Principal
from app.models.policies import AuditEntry as EntryAnswer
from app.models.policies import AuditLog, Change
from app.service import Service
from app.store.policies import AuditEntry, policy, policy_audit_log, record_policy_edit
from app.timestamps import iso_ms, now_ms

_INSTRUCTION = "update_policy"
#: Shown of a change past this service while the chain does not give its transaction.
_UNKNOWN = "on-chain"
_AT_ONCE = 10


async def log(service: Service, principal: Principal, identifier: str) -> AuditLog:
    """Return all changes of a policy, oldest first; a deleted one keeps its log. Raises ``policy_not_found``."""
    org = principal.org
    found = service.db.read(lambda conn: policy(conn, org, identifier))
    if found is None:
        raise NotFoundError("policy_not_found")
    entries = await service.db.read_async(lambda conn: policy_audit_log(conn, org, identifier))
    unsigned = [entry for entry in entries if entry.changed_by is None]
    if unsigned:
        await _find_signers(service, org, identifier, found.address, unsigned)
        entries = await service.db.read_async(lambda conn: policy_audit_log(conn, org, identifier))
    return AuditLog(data=[_shown(entry) for entry in entries])


def _shown(entry: AuditEntry) -> EntryAnswer:
    return EntryAnswer(
        timestamp=iso_ms(entry.timestamp),
        changed_by=entry.changed_by or _UNKNOWN,
        changes={name: Change.model_validate(change) for name, change in entry.changes.items()},
    )


async def _find_signers(
    service: Service, org: str, identifier: str, address: str, entries: Sequence[AuditEntry]
) -> None:
    """Note who signed these changes, as far as the chain gives their transactions."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def signer(entry: AuditEntry) -> str | None:
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
    """Return the authority that signed a transaction's update of the policy at this address."""
    options = {"commitment": "confirmed", "encoding": "base64", "maxSupportedTransactionVersion": 0}
    try:
        landed = await service.chain.call("getTransaction", [signature, options])
    except (ChainUnavailable, RpcError):
        return None
    if not landed:
        return None
    message = VersionedTransaction.from_bytes(base64.b64decode(landed["transaction"][0])).message
    keys, program, wanted = message.account_keys, service.codec.program_id, Pubkey.from_string(address)
    for instruction in message.instructions:
        if keys[instruction.program_id_index] != program:
            continue
        decoded = service.codec.decode_instruction(bytes(instruction.data))
        # The accounts of `update_policy` begin with authority, organisation and policy.
        if decoded and decoded[0] == _INSTRUCTION and keys[instruction.accounts[2]] == wanted:
            return str(keys[instruction.accounts[0]])
    return None
