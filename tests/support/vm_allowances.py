"""Builds allowances in a `VmWorld` with defaults that suit most tests."""

from typing import Any

from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from app.chain.allowance_instructions import OpenAllowance
from app.chain.rules import Rules
from tests.support.vm_tokens import DECIMALS, USDC
from tests.support.vm_world import NONE, Payee, VmWorld

ALLOWING = Rules(allow_allowances=True)
"""A policy without rules that permits allowances."""
REFERENCE = b"reference of one"
AMOUNT = 5 * USDC
MINUTE, LONGEST = 60, 180
MOST = 4
"""Maximum number of a vault's outstanding allowances."""
_TRANSFER_CHECKED = 12


def granting(
    world: VmWorld, vault: Pubkey, payee: Payee, delegate: Pubkey, amount: int = AMOUNT, **options: Any
) -> Instruction:
    """Return the instruction that grants the vault's next allowance, with the accounts that its policy needs.

    Session authority and operator sign. The allowance expires after `expires_in` seconds, or at `expires_at`.
    """
    policy = world.fields(vault)["policy"]
    allowlist = world.fields(policy)["allowlist"]
    given: dict[str, Any] = {
        "payer": world.payer,
        "signer": world.session,
        "operator": world.operator,
        "policy": policy,
        "destination": payee.tokens,
        "counter": world.fields(vault)["allowance_counter"],
        "reference": REFERENCE,
        "expires_at": world.vm.now + options.pop("expires_in", MINUTE),
        "allowlist": None if allowlist == NONE else allowlist,
        "recipient": world.addresses.recipient(world.org, payee.owner),
        **world.budgets_of(vault),
    }
    if options.get("approval") is not None:
        given["approval_rent_receiver"] = world.payer
    return world.build.grant_allowance(vault=vault, delegate=delegate, amount=amount, **{**given, **options})


def next_allowance(world: VmWorld, vault: Pubkey, payer: Pubkey | None = None) -> OpenAllowance:
    """Return the allowance that the vault will grant next."""
    address = world.addresses.allowance(vault, world.fields(vault)["allowance_counter"])
    return OpenAllowance(address, vault, payer or world.payer, **world.budgets_of(vault))


def grant(
    world: VmWorld, vault: Pubkey, payee: Payee, delegate: Pubkey, amount: int = AMOUNT, **options: Any
) -> OpenAllowance:
    """Grant an allowance."""
    allowance = next_allowance(world, vault, options.get("payer"))
    world.vm.succeed(granting(world, vault, payee, delegate, amount, **options))
    return allowance


def settling(world: VmWorld, allowance: OpenAllowance, **options: Any) -> Instruction:
    """Return the instruction that settles an allowance, by the operator or by the given `signer`."""
    return world.build.settle_allowance(allowance, **{"signer": world.operator, **options})


def delegates_transfer(
    world: VmWorld, allowance: OpenAllowance, delegate: Pubkey, destination: Pubkey, amount: int = AMOUNT
) -> Instruction:
    """Return the plain transfer that a facilitator accepts, signed by the delegate."""
    return transfer(world, tokens_of(world, allowance), destination, delegate, amount)


def transfer(world: VmWorld, source: Pubkey, destination: Pubkey, signer: Pubkey, amount: int) -> Instruction:
    """Return a plain transfer between token accounts."""
    metas = [
        AccountMeta(source, is_signer=False, is_writable=True),
        AccountMeta(world.mint, is_signer=False, is_writable=False),
        AccountMeta(destination, is_signer=False, is_writable=True),
        AccountMeta(signer, is_signer=True, is_writable=False),
    ]
    data = bytes([_TRANSFER_CHECKED]) + amount.to_bytes(8, "little") + bytes([DECIMALS])
    return Instruction(world.token_program, data, metas)


def tokens_of(world: VmWorld, allowance: OpenAllowance) -> Pubkey:
    """Return the allowance's token account."""
    return world.addresses.allowance_tokens(allowance.address)


def is_gone(world: VmWorld, allowance: OpenAllowance) -> bool:
    """Return True if both of the allowance's accounts are gone."""
    return not world.vm.exists(allowance.address) and not world.vm.exists(tokens_of(world, allowance))


def unsigned(instruction: Instruction, key: Pubkey) -> Instruction:
    """Return the instruction without the signature of this key."""
    accounts = [
        AccountMeta(meta.pubkey, meta.is_signer and meta.pubkey != key, meta.is_writable)
        for meta in instruction.accounts
    ]
    return Instruction(instruction.program_id, instruction.data, accounts)
