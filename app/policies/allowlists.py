"""Writes allowlists to the chain as drafts. An `update_policy` that names a draft puts the draft in force.

The policy's account states the version of its next list. Until a draft is sealed, writing its first chunk again starts
the draft over. A sealed draft with other entries than the policy's next list must be discarded before that list is
written. The operator may write drafts, because only the authority can put one in force. The authority's `update_policy`
names the digest of the entries.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from solders.instruction import Instruction
from solders.pubkey import Pubkey
from sqlalchemy import Connection

from app.chain.instructions import Instructions
from app.chain.transactions import MAX_SIZE, unsigned
from app.store.policies import put_allowlist
from app.store.recipients import put_domain
from app.submission.context import Service
from app.submission.plan import Authority, PlanType, with_random_compute_limit

#: Maximum number of entries that fit into one transaction signed by the fee payer and the writer.
_CHUNK = 22
#: Plan type of transactions that write a chunk of a draft.
WRITE = PlanType("write_allowlist")


@dataclass(frozen=True, slots=True)
class Step:
    """One transaction of a policy's creation or change, signed by the authority.

    Without ``by_authority``, the operator signs it instead; such a step only writes a chunk of a draft.
    """

    instructions: Sequence[Instruction]
    by_authority: bool = True


def writes(
    build: Instructions, policy: Pubkey, version: int, entries: Sequence[bytes], *, payer: Pubkey, writer: Pubkey
) -> list[Instruction]:
    """Return the instructions that write a draft of this version. The last one seals it."""
    return [
        build.write_allowlist(
            payer=payer,
            writer=writer,
            policy=policy,
            version=version,
            offset=offset,
            entries=entries[offset : offset + _CHUNK],
            seal=offset + _CHUNK >= len(entries),
        )
        for offset in range(0, max(1, len(entries)), _CHUNK)
    ]


def steps(  # noqa: PLR0917
    service: Service,
    build: Instructions,
    authority: Authority,
    policy: Pubkey,
    version: int,
    entries: Sequence[bytes],
    switch: Instruction,
) -> list[Step]:
    """Return the transactions that write a draft and put it in force.

    A single transaction is enough if the list fits and the service holds the authority's key. Otherwise the operator
    signs the chunks, and the authority signs only the `switch`, regardless of the list's length.
    """
    payer, operator = service.signers.fee_payer_address, service.signers.operator_address
    if authority.key is not None:
        together = [*writes(build, policy, version, entries, payer=payer, writer=authority.address), switch]
        if len(unsigned(with_random_compute_limit(together), payer=payer)) <= MAX_SIZE:
            return [Step(together)]
    chunks = writes(build, policy, version, entries, payer=payer, writer=operator)
    return [*(Step([chunk], by_authority=False) for chunk in chunks), Step([switch])]


def store_texts(conn: Connection, allowlist: Pubkey, policy_id: str, entries: Mapping[bytes, str]) -> None:
    """Store the texts of a list's entries. Call this before the list is sent."""
    texts = list(entries.values())
    put_allowlist(conn, str(allowlist), policy_id, texts)
    for text in texts:
        if "." in text:
            put_domain(conn, text)


async def draft(service: Service, allowlist: Pubkey) -> dict[str, Any] | None:
    """Return the draft at this on-chain address, or None if nothing is written there.

    Anyone can send SOL to the address, so an account that another program owns is not a draft. The program can still
    create the draft in that account.
    """
    account = await service.chain.account(allowlist)
    if account is None or account.owner != service.codec.program_id:
        return None
    return account.decode(service.codec).data


def is_written(found: Mapping[str, Any] | None, entries: Mapping[bytes, str]) -> bool:
    """Return True if the draft of an allowlist is sealed and holds exactly these entries."""
    return found is not None and bool(found["sealed"]) and found["entries"] == list(entries)
