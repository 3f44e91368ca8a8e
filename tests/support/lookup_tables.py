"""Address lookup tables, which let a transaction name addresses that it does not contain."""

from collections.abc import Sequence

from solders.address_lookup_table_account import AddressLookupTableAccount
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

_PROGRAM = Pubkey.from_string("AddressLookupTab1e1111111111111111111111111")
_CREATE, _EXTEND = 0, 2


def lookup_table(
    authority: Pubkey, slot: int, addresses: Sequence[Pubkey]
) -> tuple[AddressLookupTableAccount, list[Instruction]]:
    """Return a table of these addresses, and the instructions that create it, each for a separate transaction.

    `authority` signs and pays. `slot` is a past slot. The table is usable in the slots after the last instruction.
    """
    table, bump = Pubkey.find_program_address([bytes(authority), slot.to_bytes(8, "little")], _PROGRAM)
    signing = AccountMeta(authority, is_signer=True, is_writable=True)
    accounts = [AccountMeta(table, is_signer=False, is_writable=True), signing, signing]
    accounts.append(AccountMeta(Pubkey.default(), is_signer=False, is_writable=False))
    create = _CREATE.to_bytes(4, "little") + slot.to_bytes(8, "little") + bytes([bump])
    extend = _EXTEND.to_bytes(4, "little") + len(addresses).to_bytes(8, "little") + b"".join(map(bytes, addresses))
    made = [Instruction(_PROGRAM, data, accounts) for data in (create, extend)]
    return AddressLookupTableAccount(table, list(addresses)), made
