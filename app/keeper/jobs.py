"""What is due without anybody asking, as transactions: freezes after expiry, top-ups, refunds of escrows.

Each is safe to send twice, by whomever: the program refuses what has been done already.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from solders.instruction import Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.chain.escrow_instructions import OpenEscrow
from app.core.identifiers import new_reference
from app.store.escrows import DueEscrow
from app.store.expiries import ExpiredWallet
from app.store.topups import LowWallet
from app.submission.context import Service

_BALANCE = slice(64, 72)
"""Where a token account keeps its amount, for the SPL token program and for Token-2022."""


class Job(Protocol):
    """One thing that is due."""

    @property
    def key(self) -> Hashable:
        """Tells it from all others, also from the same one at another state of the chain."""

    def signers(self, service: Service, /) -> Sequence[Keypair]:
        """Return who signs beside the fee payer."""

    async def instruction(self, service: Service) -> Instruction | None:
        """Return what is to be done; None when it turns out that nothing is."""


@dataclass(frozen=True, slots=True)
class Freeze:
    """Freezes a vault whose policy has expired; anyone may."""

    wallet: ExpiredWallet

    @property
    def key(self) -> Hashable:
        """A freeze under another policy is another one."""
        return ("freeze", self.wallet.vault, self.wallet.policy)

    def signers(self, _service: Service) -> Sequence[Keypair]:
        """Return nobody: the fee payer acts."""
        return []

    async def instruction(self, service: Service) -> Instruction:
        """Return the freeze."""
        return service.instructions(self.wallet.org).freeze_wallet(
            signer=service.signers.fee_payer_address,
            vault=Pubkey.from_string(self.wallet.vault),
            policy=Pubkey.from_string(self.wallet.policy),
            action="Expire",
        )


@dataclass(frozen=True, slots=True)
class Topup:
    """Fills a wallet up from the reserve, by its rule; the operator signs."""

    wallet: LowWallet

    @property
    def key(self) -> Hashable:
        """After every change of the vault it is another one, so a rule that asks for several is not kept waiting."""
        return ("topup", self.wallet.vault, self.wallet.sequence)

    def signers(self, service: Service) -> Sequence[Keypair]:
        """Return the operator."""
        return [service.signers.operator]

    async def instruction(self, service: Service) -> Instruction | None:
        """Return the funding, good only while the vault holds too little.

        The read models may lack an earlier funding, so the chain is asked first; the program asks last.
        """
        vault = Pubkey.from_string(self.wallet.vault)
        state, tokens = await service.chain.accounts([vault, Pubkey.from_string(self.wallet.tokens)])
        if state is None or tokens is None:
            return None
        known = service.codec.decode_account(state.data)
        balance = int.from_bytes(tokens.data[_BALANCE], "little")
        if known.name != "Vault" or known.data["frozen"] or balance >= self.wallet.trigger_below:
            return None
        return service.instructions(self.wallet.org).fund_wallet(
            operator=service.signers.operator_address,
            vault=vault,
            amount=self.wallet.topup_amount,
            reference=new_reference(),
            only_below=self.wallet.trigger_below,
        )


@dataclass(frozen=True, slots=True)
class Refund:
    """Gives an escrow back whose deadline has come, or whose dispute nobody decided; anyone may."""

    escrow: DueEscrow

    @property
    def key(self) -> Hashable:
        """An escrow is given back once."""
        return ("refund", self.escrow.address)

    def signers(self, _service: Service) -> Sequence[Keypair]:
        """Return nobody: the fee payer acts."""
        return []

    async def instruction(self, service: Service) -> Instruction:
        """Return the refund."""
        due = self.escrow
        addresses = (Pubkey.from_string(one) for one in (due.address, due.vault, due.receiver, due.payer))
        return service.instructions(due.org).refund_escrow(OpenEscrow(*addresses))
