"""Turns a valid call into attacks, based on what the IDL and the chain say about its accounts."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from solders.account import Account
from solders.instruction import AccountMeta, Instruction
from solders.pubkey import Pubkey

from app.chain.addresses import ASSOCIATED_TOKEN_PROGRAM, SYSTEM_PROGRAM, TOKEN_2022_PROGRAM, TOKEN_PROGRAM
from tests.program.adversaries.stage import AttackStage
from tests.program.adversaries.ways import Call, Slot, Way, slots
from tests.program.bumps import below_canonical
from tests.support.vm import PROGRAM_ID
from tests.support.vm_tokens import ACCOUNT_SIZE, place_token_account

HARMLESS = {
    ("payer", "another signs"): "anyone who signs may pay",
    ("payer", "the other organisation's"): "anyone who signs may pay",
    ("freeze_wallet expire", "signer", "another signs"): "anyone may",
    ("freeze_wallet expire", "signer", "the other organisation's"): "anyone may",
    ("close_approval overdue", "signer", "another signs"): "anyone may",
    ("close_approval overdue", "signer", "the other organisation's"): "anyone may",
    ("withdraw archived", "rent_receiver", "left out"): "the operator need not sweep lamports",
    ("delegate", "the other organisation's"): "the operator, who signs, chooses the delegate",
    ("delegate", "the victim's"): "the operator, who signs, chooses the delegate",
    ("grant_allowance operator", "signer", "does not sign"): "the same key signs as the operator",
    ("grant_allowance operator", "operator", "does not sign"): "the same key signs as the signer",
    ("withdraw_reserve", "destination", "the other organisation's"): "the authority chooses where the money goes",
    ("withdraw_reserve", "destination", "another owner's tokens"): "the authority chooses where the money goes",
    ("withdraw_reserve", "destination", "another account of the owner"): "the authority chooses where the money goes",
    ("withdraw_reserve", "destination", "the victim's"): "anyone may receive money",
    ("destination", "another account of the owner"): "the policy looks at the owner, who may have several accounts",
    ("program", "another program"): "the program never reads this account, which exists for clients of the IDL",
    ("program", "no program"): "the program never reads this account, which exists for clients of the IDL",
}
"""Changes that are not attacks, and why. A test shows that each is accepted."""

TOKEN_ACCOUNTS = {
    *("vault_tokens", "reserve_tokens", "destination", "escrow_tokens", "receiver_tokens", "allowance_tokens"),
}
PROGRAMS = {SYSTEM_PROGRAM, TOKEN_PROGRAM, TOKEN_2022_PROGRAM, ASSOCIATED_TOKEN_PROGRAM, PROGRAM_ID}


@dataclass(frozen=True)
class Attack:
    """A call with one fault in one of its accounts. `way`, `account` and `kind` identify it in the table."""

    way: str
    account: str
    kind: str
    call: Call

    @property
    def harmless(self) -> bool:
        return (self.account, self.kind) in HARMLESS or (self.way, self.account, self.kind) in HARMLESS


def attacks(stage: AttackStage, way: Way) -> Iterator[Attack]:
    """Yield every attack on a call."""
    valid, foreign = way.make(stage.victim), way.make(stage.other)
    described = slots(way.instruction)
    assert len(described) == len(valid.instruction.accounts)
    for index, slot in enumerate(described):
        meta = valid.instruction.accounts[index]
        if meta.pubkey == PROGRAM_ID and slot.optional:
            continue
        for kind, replacement in _replacements(stage, slot, index, valid, foreign):
            yield Attack(way.name, slot.name, kind, _with(valid, index, replacement))
        others = foreign.instruction.accounts[index].pubkey
        if others != meta.pubkey and not slot.signer:
            replacement = AccountMeta(meta.pubkey, is_signer=False, is_writable=meta.is_writable)
            yield Attack(way.name, slot.name, "the victim's", _with(foreign, index, replacement))
    yield from _twice(way, described, valid)
    yield from _from_the_other_side(way, described, valid, foreign)


def _with(call: Call, index: int, meta: AccountMeta) -> Call:
    accounts = list(call.instruction.accounts)
    accounts[index] = meta
    return _with_all(call, accounts)


def _with_all(call: Call, accounts: Sequence[AccountMeta]) -> Call:
    instruction = Instruction(call.instruction.program_id, call.instruction.data, accounts)
    return replace(call, instruction=instruction)


def _replacements(
    stage: AttackStage, slot: Slot, index: int, valid: Call, foreign: Call
) -> Iterator[tuple[str, AccountMeta]]:
    meta, others = valid.instruction.accounts[index], foreign.instruction.accounts[index]

    def instead(address: Pubkey, *, signs: bool | None = None) -> AccountMeta:
        return AccountMeta(address, meta.is_signer if signs is None else signs, meta.is_writable)

    if slot.signer:
        yield "does not sign", instead(meta.pubkey, signs=False)
        yield "another signs", instead(stage.attacker)
    if slot.writable:
        yield "read-only", AccountMeta(meta.pubkey, meta.is_signer, is_writable=False)
    if slot.optional:
        yield "left out", AccountMeta(PROGRAM_ID, is_signer=False, is_writable=False)
    if others.pubkey != meta.pubkey:
        yield "the other organisation's", instead(others.pubkey)
    if slot.name == "event_authority":
        yield "another address", instead(Pubkey.new_unique())
        yield "another signs", instead(stage.attacker, signs=True)
    if slot.name == "mint":
        yield "another mint", instead(stage.other_mint)
    if meta.pubkey in PROGRAMS:
        yield "another program", instead(TOKEN_2022_PROGRAM)
        yield "no program", instead(stage.attacker)
    account = stage.vm.account(meta.pubkey) if stage.vm.exists(meta.pubkey) else None
    if account is None and slot.writable and not slot.signer:
        yield from ((kind, instead(address)) for kind, address in _new_addresses(stage, slot, valid))
    if slot.name in TOKEN_ACCOUNTS:
        yield from ((kind, instead(address)) for kind, address in _token_accounts(stage, meta.pubkey, account))
    if account is not None and account.owner in {PROGRAM_ID, TOKEN_PROGRAM} and account.data:
        kind = "copied to another program"
        yield kind, instead(stage.vm.put(_address_of(meta.pubkey, kind), account.data, stage.attacker))


def _new_addresses(stage: AttackStage, slot: Slot, valid: Call) -> Iterator[tuple[str, Pubkey]]:
    """Yield addresses at which an account must not be created."""
    yield "another address", stage.vm.key()
    if slot.name in valid.seeds:
        yield "non-canonical bump", below_canonical(*valid.seeds[slot.name])[0]


def _token_accounts(stage: AttackStage, address: Pubkey, account: Account | None) -> Iterator[tuple[str, Pubkey]]:
    """Yield token accounts that must not pass for the one at `address`."""
    yield "another owner's tokens", stage.attackers_tokens
    if account is not None:
        owner = Pubkey(account.data[32:64])
        assert len(account.data) == ACCOUNT_SIZE
        mints = {"another account of the owner": stage.victim.mint, "another mint's tokens": stage.other_mint}
        for kind, mint in mints.items():
            yield kind, place_token_account(stage.vm, mint, owner, 100, at=_address_of(address, kind))


def _twice(way: Way, described: Sequence[Slot], valid: Call) -> Iterator[Attack]:
    """Yield the call with each writable account put in the place of each other one."""
    accounts = valid.instruction.accounts
    given = [
        (index, slot) for index, slot in enumerate(described) if slot.writable and accounts[index].pubkey != PROGRAM_ID
    ]
    for index, slot in given:
        for source, other in given:
            meta, replaced = accounts[source], accounts[index]
            if meta.pubkey == replaced.pubkey:
                continue
            signs = replaced.is_signer and meta.is_signer
            twice = AccountMeta(meta.pubkey, signs, is_writable=True)
            yield Attack(way.name, slot.name, f"the {other.name} again", _with(valid, index, twice))


def _from_the_other_side(way: Way, described: Sequence[Slot], valid: Call, foreign: Call) -> Iterator[Attack]:
    """Yield what the other organisation could sign against all of the victim's accounts, or against its vault alone."""
    names = [slot.name for slot in described]
    ours, theirs = valid.instruction.accounts, foreign.instruction.accounts
    if {"vault", "vault_tokens"} <= set(names):
        vault, tokens = names.index("vault"), names.index("vault_tokens")
        both = _with(_with(foreign, vault, ours[vault]), tokens, ours[tokens])
        yield Attack(way.name, "vault", "the victim's, with its tokens", both)
    accounts = [
        their if slot.signer or slot.name == "org" else our
        for slot, our, their in zip(described, ours, theirs, strict=True)
    ]
    if accounts != theirs and "org" in names:
        yield Attack(way.name, "org", "the other's, with its signers", _with_all(valid, accounts))


def _address_of(address: Pubkey, kind: str) -> Pubkey:
    """Return a fixed address for this kind of attack on an account."""
    return Pubkey.create_with_seed(address, kind[:32], SYSTEM_PROGRAM)
