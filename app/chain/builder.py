"""The base class of the instruction builders."""

from typing import Any

from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.addresses import Addresses
from idl.codec import Codec


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
