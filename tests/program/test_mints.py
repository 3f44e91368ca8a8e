"""Which mints an organisation may use."""

import pytest
from solders.instruction import Instruction
from solders.pubkey import Pubkey

from app.chain.addresses import SYSTEM_PROGRAM, TOKEN_2022_PROGRAM, TOKEN_PROGRAM, Addresses
from app.chain.instructions import Instructions
from tests.support.vm import CODEC, LAMPORTS, PROGRAM_ID, Vm
from tests.support.vm_tokens import extended_mint_data, mint_data, token_balance
from tests.support.vm_world import GENESIS_HASH, VmWorld

HARMLESS = {
    18: ("MetadataPointer", 64),
    19: ("TokenMetadata", 90),
    20: ("GroupPointer", 64),
    21: ("TokenGroup", 80),
    22: ("GroupMemberPointer", 64),
    23: ("TokenGroupMember", 72),
}
"""Extension types of Token-2022 that only describe, with the lengths of their values.
<https://docs.rs/spl-token-2022-interface/latest/spl_token_2022_interface/extension/enum.ExtensionType.html>"""
HARMFUL = {
    1: ("TransferFeeConfig", 108),
    3: ("MintCloseAuthority", 32),
    4: ("ConfidentialTransferMint", 65),
    6: ("DefaultAccountState", 1),
    9: ("NonTransferable", 0),
    10: ("InterestBearingConfig", 52),
    12: ("PermanentDelegate", 32),
    14: ("TransferHook", 64),
    16: ("ConfidentialTransferFeeConfig", 129),
    24: ("ConfidentialMintBurn", 196),
    25: ("ScaledUiAmount", 56),
    26: ("Pausable", 33),
}


def founding(vm: Vm, data: bytes, owner: Pubkey, token_program: Pubkey) -> Instruction:
    """Return the instruction that creates an organisation with a mint of this data."""
    mint = vm.put(Pubkey.new_unique(), data, owner)
    payer, creator = vm.key(LAMPORTS), vm.key()
    addresses = Addresses(PROGRAM_ID, mint, token_program)
    return Instructions(CODEC, addresses, addresses.org(creator, "acme")).initialize_org(
        payer=payer,
        creator=creator,
        org_id="acme",
        genesis_hash=GENESIS_HASH,
        operator=creator,
        arbiter=creator,
        verifier=creator,
    )


@pytest.fixture(scope="module", name="vm")
def _vm() -> Vm:
    return Vm()


def test_mint_of_spl_token_is_accepted(vm: Vm) -> None:
    vm.succeed(founding(vm, mint_data(), TOKEN_PROGRAM, TOKEN_PROGRAM))


def test_mint_with_a_freeze_authority_is_accepted(vm: Vm) -> None:
    data = mint_data(freeze_authority=Pubkey.new_unique())
    vm.succeed(founding(vm, data, TOKEN_PROGRAM, TOKEN_PROGRAM))


def test_plain_mint_of_token_2022_is_accepted(vm: Vm) -> None:
    vm.succeed(founding(vm, mint_data(), TOKEN_2022_PROGRAM, TOKEN_2022_PROGRAM))


@pytest.mark.parametrize("kind", HARMLESS)
def test_extension_that_only_describes_is_accepted(vm: Vm, kind: int) -> None:
    data = extended_mint_data((kind, HARMLESS[kind][1]))
    vm.succeed(founding(vm, data, TOKEN_2022_PROGRAM, TOKEN_2022_PROGRAM))


@pytest.mark.parametrize("kind", HARMFUL)
def test_extension_with_power_over_the_money_is_refused(vm: Vm, kind: int) -> None:
    harmful = (kind, HARMFUL[kind][1])
    for extensions in ([harmful], [(18, 64), harmful], [harmful, (18, 64)]):
        data = extended_mint_data(*extensions)
        vm.refuse("UnsupportedMint", founding(vm, data, TOKEN_2022_PROGRAM, TOKEN_2022_PROGRAM))


@pytest.mark.parametrize("kind", [2, 5, 7, 8, 11, 13, 15, 17, 27, 28, 255, 65_535])
def test_account_extensions_and_unknown_ones_are_refused(vm: Vm, kind: int) -> None:
    vm.refuse("UnsupportedMint", founding(vm, extended_mint_data((kind, 8)), TOKEN_2022_PROGRAM, TOKEN_2022_PROGRAM))


def test_truncated_and_hidden_extensions_are_refused(vm: Vm) -> None:
    cut = extended_mint_data((18, 64))[:-1]
    hidden = extended_mint_data() + bytes(4) + extended_mint_data((12, 32))[166:]
    for data in (cut, hidden):
        vm.refuse("UnsupportedMint", founding(vm, data, TOKEN_2022_PROGRAM, TOKEN_2022_PROGRAM))


def test_account_that_is_not_a_mint_is_refused(vm: Vm) -> None:
    as_account = bytearray(extended_mint_data((18, 64)))
    as_account[165] = 2
    refuse = vm.refuse
    refuse("UnsupportedMint", founding(vm, mint_data(initialized=False), TOKEN_PROGRAM, TOKEN_PROGRAM))
    refuse("UnsupportedMint", founding(vm, mint_data(), PROGRAM_ID, TOKEN_PROGRAM))
    refuse("UnsupportedMint", founding(vm, mint_data(), TOKEN_2022_PROGRAM, TOKEN_PROGRAM))
    refuse("UnsupportedMint", founding(vm, mint_data(), TOKEN_PROGRAM, TOKEN_2022_PROGRAM))
    refuse("UnsupportedMint", founding(vm, extended_mint_data((18, 64)), TOKEN_PROGRAM, TOKEN_PROGRAM))
    refuse("UnsupportedMint", founding(vm, bytes(as_account), TOKEN_2022_PROGRAM, TOKEN_2022_PROGRAM))
    refuse("UnsupportedMint", founding(vm, b"", TOKEN_PROGRAM, TOKEN_PROGRAM))
    refuse("UnsupportedTokenProgram", founding(vm, mint_data(), PROGRAM_ID, PROGRAM_ID))
    refuse("UnsupportedTokenProgram", founding(vm, mint_data(), SYSTEM_PROGRAM, SYSTEM_PROGRAM))


@pytest.mark.parametrize("extensions", [(), ((18, 64),), ((18, 64), (19, 90))])
def test_organisation_on_token_2022_funds_pays_and_withdraws(extensions: tuple[tuple[int, int], ...]) -> None:
    vm = Vm()
    data = extended_mint_data(*extensions) if extensions else mint_data()
    mint = vm.put(Pubkey.new_unique(), data, TOKEN_2022_PROGRAM)
    world = VmWorld(vm, mint=mint, token_program=TOKEN_2022_PROGRAM, reserve=100)
    vault, payee = world.wallet(funds=60), world.payee()
    own = world.tokens_of(vault)
    # Token-2022 adds the extension ImmutableOwner to associated accounts, so they are longer than SPL Token's
    assert len(vm.data(own)) > 165
    assert world.vm.succeed(world.payment(vault, payee, 25)).transfers == 1
    vm.succeed(world.build.withdraw(operator=world.operator, vault=vault, amount=None, reference=bytes(16)))
    reserve = world.reserve
    assert [token_balance(vm, tokens) for tokens in (own, payee.tokens, reserve)] == [0, 25, 75]
