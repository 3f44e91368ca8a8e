"""Allowlists on their way to the chain: written as a draft, in force by the `update_policy` that names them.

A draft has the version after the list in force. Its first chunk starts it again, so one that never came into force
is used by the policy's next list; what it costs is given back when that one is replaced, or the policy deleted.
"""

from collections.abc import Collection, Sequence

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.chain.instructions import Instructions
from app.chain.transactions import MAX_SIZE, unsigned
from app.store.policies import UPDATE, put_allowlist
from app.store.recipients import put_domain
from app.submission import ordering
from app.submission.context import Service
from app.submission.plan import PlanType, distinct

#: Entries that one transaction carries beside the signatures of fee payer and authority.
_CHUNK = 22
_SIGNATURE = 64
#: Writes a chunk of a draft.
WRITE = PlanType("write_allowlist")


def writes(
    build: Instructions, policy: Pubkey, version: int, entries: Sequence[bytes], *, payer: Pubkey, authority: Pubkey
) -> list[Instruction]:
    """Return the instructions that write and seal a draft of this version."""
    return [
        build.write_allowlist(
            payer=payer,
            authority=authority,
            policy=policy,
            version=version,
            offset=offset,
            entries=entries[offset : offset + _CHUNK],
            seal=offset + _CHUNK >= len(entries),
        )
        for offset in range(0, len(entries), _CHUNK)
    ]


def fit(instructions: Sequence[Instruction], payer: Pubkey, *, signatures: int) -> bool:
    """Whether the instructions go into one transaction."""
    if len(instructions) > 3:
        return False
    blank = unsigned(distinct(instructions), payer=payer)
    message = blank[1 + _SIGNATURE * blank[0] :]
    return 1 + _SIGNATURE * signatures + len(message) <= MAX_SIZE


def remember(conn: Connection, allowlist: Pubkey, policy_id: str, texts: Sequence[str]) -> None:
    """Store what the entries of a list are called, before the list is sent."""
    put_allowlist(conn, str(allowlist), policy_id, texts)
    for text in texts:
        if "." in text:
            put_domain(conn, text)


async def written(service: Service, allowlist: Pubkey, entries: Sequence[bytes]) -> bool:
    """Whether the draft on the chain is sealed and holds exactly these entries."""
    account = await service.chain.account(allowlist)
    if account is None:
        return False
    draft = service.codec.decode_account(account.data).data
    return bool(draft["sealed"]) and draft["entries"] == list(entries)


async def wait_for_earlier(
    service: Service, org: str, policy_id: str, types: Collection[str] = (WRITE.name, UPDATE)
) -> None:
    """Return when no earlier request's change of a policy, or chunk of a draft of its list, can land any more.

    Raises ``chain_unavailable`` while one can. An update of rules need not wait: the chain lets only the first of two
    that start from the same version pass.
    """
    await ordering.wait_for_earlier(service, org, types, where=lambda earlier: earlier.policy_id == policy_id)
