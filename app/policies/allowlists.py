"""Allowlists on their way to the chain: written as a draft, put in force by the `update_policy` that names it.

A draft has the version after the list in force. Its first chunk starts it again, so a draft that never came into force
is overwritten by the policy's next list. Its rent comes back when that list is replaced or the policy is deleted.
"""

from collections.abc import Mapping, Sequence

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.chain.instructions import Instructions
from app.chain.transactions import MAX_SIZE, unsigned
from app.store.policies import put_allowlist
from app.store.recipients import put_domain
from app.submission.context import Service
from app.submission.plan import PlanType, distinct

#: Entries that fit into one transaction signed by the fee payer and the authority.
_CHUNK = 22
#: Writes a chunk of a draft.
WRITE = PlanType("write_allowlist")


def writes(
    build: Instructions, policy: Pubkey, version: int, entries: Sequence[bytes], *, payer: Pubkey, authority: Pubkey
) -> list[Instruction]:
    """Return the instructions that write a draft of this version; the last one seals it."""
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
        for offset in range(0, max(1, len(entries)), _CHUNK)
    ]


def split(instructions: Sequence[Instruction], payer: Pubkey) -> list[Sequence[Instruction]]:
    """Put the instructions into one transaction if they fit, otherwise each into its own."""
    if instructions and len(unsigned(distinct(instructions), payer=payer)) <= MAX_SIZE:
        return [instructions]
    return [[one] for one in instructions]


def store_texts(conn: Connection, allowlist: Pubkey, policy_id: str, entries: Mapping[bytes, str]) -> None:
    """Store the texts of a list's entries, before the list is sent."""
    texts = list(entries.values())
    put_allowlist(conn, str(allowlist), policy_id, texts)
    for text in texts:
        if "." in text:
            put_domain(conn, text)


async def is_written(service: Service, allowlist: Pubkey, entries: Mapping[bytes, str]) -> bool:
    """Return whether the draft on the chain is sealed and holds exactly these entries."""
    account = await service.chain.account(allowlist)
    if account is None:
        return False
    draft = account.decode(service.codec).data
    return bool(draft["sealed"]) and draft["entries"] == list(entries)
