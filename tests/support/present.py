"""Instructions that expect the chain's current state, unless a test gives other values."""

from collections.abc import Callable, Mapping
from typing import Any

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.addresses import Addresses
from app.chain.escrow_instructions import OpenEscrow
from app.chain.instructions import Instructions
from app.chain.payees import first_paid
from app.localnet import Localnet
from idl.codec import Codec, CodecError

Read = Callable[[Pubkey], bytes | None]
"""Returns the data of an account, or None if it does not exist."""


class PresentInstructions(Instructions):
    """Builds instructions. Expected versions and numbers come from the accounts that `read` returns."""

    def __init__(self, codec: Codec, addresses: Addresses, org: Pubkey, read: Read) -> None:
        super().__init__(codec, addresses, org)
        self._read = read

    def _number(self, address: Pubkey, field: str) -> int:
        """Return a field of an account, or zero if the account does not exist or belongs to another program."""
        try:
            number: int = self._codec.decode_account(self._read(address) or b"").data.get(field, 0)
        except CodecError:
            return 0
        return number

    def _authority_sequence(self) -> dict[str, int]:
        return {"expected_sequence": self._number(self.org, "authority_sequence")}

    def _version(self, address: Pubkey | None, name: str) -> dict[str, int]:
        return {} if address is None else {name: self._number(address, "version")}

    def _attachments(self, given: Mapping[str, Any]) -> dict[str, int]:
        return {"expected_attachments": self._number(given["vault"], "attachments")}

    def accept_authority(self, **given: Any) -> Instruction:
        return super().accept_authority(**self._authority_sequence() | given)

    def create_policy(self, **given: Any) -> Instruction:
        return super().create_policy(**self._authority_sequence() | given)

    def create_budget(self, **given: Any) -> Instruction:
        version = self._version(given.get("parent"), "parent_version")
        return super().create_budget(**self._authority_sequence() | version | given)

    def close_policy(self, **given: Any) -> Instruction:
        return super().close_policy(**self._version(given["policy"], "expected_version") | given)

    def close_budget(self, **given: Any) -> Instruction:
        return super().close_budget(**self._version(given["budget"], "expected_version") | given)

    def forget_payee(self, **given: Any) -> Instruction:
        paid = first_paid(self._read(given["vault"]) or b"", given["address"])
        return super().forget_payee(**{"first_paid": paid or 0} | given)

    def unfreeze_budget(self, **given: Any) -> Instruction:
        sequence = {"expected_sequence": self._number(given["budget"], "frozen_sequence")}
        return super().unfreeze_budget(**sequence | given)

    def create_wallet(self, **given: Any) -> Instruction:
        return super().create_wallet(**self._version(given["policy"], "policy_version") | given)

    def update_wallet(self, **given: Any) -> Instruction:
        sessions = {"expected_sessions": self._number(given["vault"], "sessions")}
        version = self._version(given.get("new_policy"), "policy_version")
        return super().update_wallet(**sessions | self._attachments(given) | version | given)

    def set_wallet_budget(self, **given: Any) -> Instruction:
        version = self._version(given.get("new_budget"), "budget_version")
        version |= self._version(given.get("new_parent"), "parent_version")
        return super().set_wallet_budget(**self._attachments(given) | version | given)

    def close_wallet(self, **given: Any) -> Instruction:
        return super().close_wallet(**{"expected_sequence": self._number(given["vault"], "sequence")} | given)

    def register_recipient(self, **given: Any) -> Instruction:
        account = self._addresses.recipient(self.org, given["address"])
        return super().register_recipient(**{"replaces": self._number(account, "sequence")} | given)

    def approve_payment(self, **given: Any) -> Instruction:
        approvals = {"expected_approvals": self._number(given["vault"], "approvals")}
        return super().approve_payment(**approvals | self._version(given["policy"], "policy_version") | given)

    def resolve_dispute(self, escrow: OpenEscrow, **given: Any) -> Instruction:
        return super().resolve_dispute(escrow, **self._dispute(escrow) | given)

    def withdraw_dispute(self, escrow: OpenEscrow, **given: Any) -> Instruction:
        return super().withdraw_dispute(escrow, **self._dispute(escrow) | given)

    def _dispute(self, escrow: OpenEscrow) -> dict[str, int]:
        return {"expected_sequence": self._number(escrow.address, "dispute_sequence")}


def on_localnet(localnet: Localnet, codec: Codec, addresses: Addresses, org: Pubkey) -> PresentInstructions:
    """Return the instructions of an organisation on an embedded chain."""

    def read(address: Pubkey) -> bytes | None:
        account = localnet.chain.bank.get(address)
        return None if account is None else bytes(account.data)

    return PresentInstructions(codec, addresses, org, read)
