"""The base class of the instruction builders."""

from collections.abc import Mapping
from typing import Any, TypedDict

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.addresses import Addresses
from idl.codec import Codec


class GrantAccounts(TypedDict, total=False):
    """The optional accounts of a payment, an escrow or an allowance.

    Pass the `allowlist` if the policy has one, the `budget` if the vault has one, and the `budget_parent` if the budget
    has one. `recipient` is the account with the organisation's registration of the payee. Pass it if the policy blocks
    a category or if its allowlist may contain a domain. The rent of an `approval` goes to `approval_rent_receiver`.
    """

    allowlist: Pubkey | None
    recipient: Pubkey | None
    approval: Pubkey | None
    approval_rent_receiver: Pubkey | None
    budget: Pubkey | None
    budget_parent: Pubkey | None


class SpendingAccounts(GrantAccounts, total=False):
    """The optional accounts of a payment or an escrow. Pass the operator as `co_signer` for a co-signature."""

    co_signer: Pubkey | None


def complete(names: type[GrantAccounts], given: Mapping[str, Any]) -> dict[str, Pubkey | None]:
    """Return the given optional accounts, and None for the others."""
    return {**dict.fromkeys(names.__annotations__), **given}


class Builder:
    """Builds instructions of the program for one organisation."""

    def __init__(self, codec: Codec, addresses: Addresses, org: Pubkey) -> None:
        self._codec = codec
        self._addresses = addresses
        self.org = org
        self.reserve_tokens = addresses.token_account(org)

    def _build(self, name: str, args: dict[str, Any], **accounts: Pubkey | None) -> Instruction:
        return self._codec.instruction(name, args, {"org": self.org, **accounts})

    def _token_accounts(self) -> dict[str, Pubkey]:
        return {"mint": self._addresses.mint, "token_program": self._addresses.token_program}

    def _vault_accounts(self, vault: Pubkey) -> dict[str, Pubkey]:
        """Return a vault with its token account and the accounts of the token program."""
        return {"vault": vault, "vault_tokens": self._addresses.token_account(vault), **self._token_accounts()}
