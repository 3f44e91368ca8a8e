"""Transactions that are due without a request: freezes, top-ups, refunds of escrows, settlements of allowances.

Sending a job's transaction twice does no harm, because the program refuses work that is already done.
"""

import base64
from collections.abc import Awaitable, Callable, Hashable, Sequence
from dataclasses import dataclass

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.allowances.service import accounts_of
from app.chain.errors import BlockhashNotFound
from app.chain.escrow_instructions import OpenEscrow
from app.chain.transactions import sign_with_any
from app.core.identifiers import new_reference
from app.core.signers import Signer
from app.store.allowances import AllowanceRecord
from app.store.escrows import SETTLED, DueEscrow
from app.store.expiries import ExpiredWallet
from app.store.topups import LowWallet
from app.submission.chain_state import with_budget
from app.submission.context import Service

#: Position of the amount in a token account, in the SPL token program and in Token-2022.
_BALANCE = slice(64, 72)


@dataclass(frozen=True, slots=True)
class Job:
    """One due transaction.

    ``key`` distinguishes the job from all others, and from the same job at another state of the chain. ``build``
    returns the instruction, or None if nothing is due after all. ``signers`` sign in addition to the fee payer.
    """

    key: Hashable
    build: Callable[[], Awaitable[Instruction | None]]
    signers: Sequence[Signer] = ()


def freeze(service: Service, wallet: ExpiredWallet) -> Job:
    """Freeze a vault with an expired policy. The fee payer signs, because anyone may freeze an expired vault."""

    async def build() -> Instruction:
        return service.instructions(wallet.org).freeze_wallet(
            signer=service.signers.fee_payer_address,
            vault=Pubkey.from_string(wallet.vault),
            policy=Pubkey.from_string(wallet.policy),
            action="Expire",
        )

    return Job(("freeze", wallet.vault, wallet.policy), build)


def topup(service: Service, wallet: LowWallet) -> Job:
    """Refill a wallet from the reserve by the wallet's top-up rule. The operator signs.

    The instruction is valid only while the vault holds too little. The read models may lack an earlier funding, so the
    job reads the chain first, and the program checks the balance again. Every change to the vault makes a new job, so
    that the pause after an attempt does not delay a rule that needs several top-ups.
    """

    async def build() -> Instruction | None:
        vault = Pubkey.from_string(wallet.vault)
        state, tokens = await service.chain.accounts([vault, Pubkey.from_string(wallet.tokens)])
        if state is None or tokens is None:
            return None
        known = state.decode(service.codec)
        balance = int.from_bytes(tokens.data[_BALANCE], "little")
        if known.name != "Vault" or known.data["frozen"] or balance >= wallet.trigger_below:
            return None
        return service.instructions(wallet.org).fund_wallet(
            operator=service.signers.operator_address,
            vault=vault,
            amount=wallet.topup_amount,
            reference=new_reference(),
            only_below=wallet.trigger_below,
        )

    return Job(("topup", wallet.vault, wallet.sequence), build, [service.signers.operator])


def settle(service: Service, allowance: AllowanceRecord) -> Job:
    """Settle an allowance that is due. The operator signs, because an operator may always settle."""

    async def build() -> Instruction:
        accounts = await with_budget(service, accounts_of(allowance))
        return service.instructions(allowance.org).settle_allowance(accounts, signer=service.signers.operator_address)

    return Job(("settle", allowance.address), build, [service.signers.operator])


def refund(service: Service, escrow: DueEscrow) -> Job:
    """Refund an escrow that is past its deadline, or whose dispute was not decided in time. The fee payer signs.

    If the escrow is settled but a party could not be paid its share, collect that share. The program refuses the
    collection until the share can be paid.
    """

    async def build() -> Instruction:
        addresses = (Pubkey.from_string(one) for one in (escrow.address, escrow.vault, escrow.receiver, escrow.payer))
        account, instructions = OpenEscrow(*addresses), service.instructions(escrow.org)
        if escrow.status == SETTLED:
            return instructions.collect_escrow(account, payer=service.signers.fee_payer_address)
        return instructions.refund_escrow(await with_budget(service, account))

    return Job(("refund", escrow.address, escrow.status), build)


async def send(service: Service, instruction: Instruction, signers: Sequence[Signer]) -> str:
    """Send a job's transaction and return its signature. Raises RpcError if the preflight refuses it."""
    try:
        return await _send(service, instruction, signers, fresh=False)
    except BlockhashNotFound:
        return await _send(service, instruction, signers, fresh=True)


async def _send(service: Service, instruction: Instruction, signers: Sequence[Signer], *, fresh: bool) -> str:
    blockhash = await service.chain.blockhash(fresh=fresh)
    payer = service.signers.fee_payer
    signed = await sign_with_any([instruction], payer=payer, signers=signers, blockhash=blockhash.hash)
    # Simulate on the newest state, which includes the latest work of other keepers.
    options = {"encoding": "base64", "preflightCommitment": "processed"}
    await service.chain.call("sendTransaction", [base64.b64encode(signed.raw).decode(), options])
    return signed.signature
