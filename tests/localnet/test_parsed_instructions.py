"""`jsonParsed`: instructions in the words of a validator, whose answers to the same transactions are compared."""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
from solders.compute_budget import set_compute_unit_limit, set_compute_unit_price
from solders.instruction import AccountMeta, Instruction
from solders.keypair import Keypair
from solders.pubkey import Pubkey
from solders.system_program import CreateAccountWithSeedParams, create_account_with_seed
from spl.token.instructions import create_idempotent_associated_token_account

from app.localnet.parsed_instructions import parsed_instruction
from app.localnet.tokens import TOKEN_2022_PROGRAM, TOKEN_PROGRAM
from tests.support.both_chains import PARSED, PAYER, fund, on_embedded_chain, on_validator
from tests.support.localnet import SOL, Client, encoded, pay, pay_usdc
from tests.validator.node import Node

Json = dict[str, Any]

SYSTEM = Pubkey.default()
ASSOCIATED = Pubkey.from_string("ATokenGPvbdGVxr1b2hvZbsiqW5xWH25efTNsLJA8knL")
MEMO = Pubkey.from_string("MemoSq4gqABAXKb96qnH8TysNcWxMyWCqXgDLGmfcHr")

_OTHERS = [Keypair.from_seed(bytes([index]) * 32).pubkey() for index in range(1, 9)]
_ADDRESS = bytes(_OTHERS[7])
_TEXT = (5).to_bytes(8, "little") + b"seed5"


def _u64(number: int) -> bytes:
    return number.to_bytes(8, "little")


def _system(tag: int, data: bytes = b"") -> tuple[Pubkey, bytes]:
    return SYSTEM, tag.to_bytes(4, "little") + data


def _cases() -> list[tuple[Pubkey, bytes, int]]:
    """Program, data and number of accounts of each instruction."""
    seeded = _ADDRESS + _TEXT
    system = [
        (*_system(0, _u64(7) + _u64(9) + _ADDRESS), 2),
        (*_system(1, _ADDRESS), 1),
        (*_system(2, _u64(11)), 2),
        (*_system(3, seeded + _u64(7) + _u64(9) + _ADDRESS), 3),
        (*_system(4), 3),
        (*_system(5, _u64(3)), 5),
        (*_system(6, _ADDRESS), 3),
        (*_system(7, _ADDRESS), 2),
        (*_system(8, _u64(12)), 1),
        (*_system(9, seeded + _u64(12) + _ADDRESS), 2),
        (*_system(10, seeded + _ADDRESS), 2),
        (*_system(11, _u64(12) + _TEXT + _ADDRESS), 3),
        (*_system(12), 1),
        # Malformed: too few accounts, too few bytes, no such instruction.
        (*_system(2, _u64(11)), 1),
        (*_system(2, b"\x01"), 2),
        (*_system(99), 2),
    ]
    amount, checked = _u64(12_345), _u64(12_345) + b"\x06"
    token: list[tuple[bytes, int]] = [
        (b"\x00\x06" + _ADDRESS + b"\x01" + _ADDRESS, 2),
        (b"\x00\x06" + _ADDRESS + b"\x00", 2),
        (b"\x01", 4),
        (b"\x02\x02", 5),
        *((bytes([tag]) + amount, 3) for tag in (3, 4, 7, 8)),
        *((bytes([tag]) + amount, 5) for tag in (3, 4, 7, 8)),
        (b"\x05", 2),
        (b"\x05", 4),
        *((bytes([6, kind, 1]) + _ADDRESS, 2) for kind in range(4)),
        (b"\x06\x02\x00", 2),
        *((bytes([tag]), 3) for tag in (9, 10, 11)),
        *((bytes([tag]) + checked, 4) for tag in (12, 13)),
        *((bytes([tag]) + checked, 6) for tag in (12, 13)),
        *((bytes([tag]) + checked, 3) for tag in (14, 15)),
        (b"\x10" + _ADDRESS, 3),
        (b"\x11", 1),
        (b"\x12" + _ADDRESS, 2),
        (b"\x13\x02", 4),
        (b"\x14\x06" + _ADDRESS + b"\x00", 1),
        (b"\x15", 1),
        (b"\x15\x07\x00\x0e\x00", 1),
        (b"\x16", 1),
        (b"\x17" + amount, 1),
        (b"\x181.5", 1),
        # Malformed: too few accounts, too few bytes, no such instruction.
        (b"\x03" + amount, 2),
        (b"\x0c" + amount, 4),
        (b"\xc8", 3),
        (b"", 1),
    ]
    tokens = [(program, data, count) for program in (TOKEN_PROGRAM, TOKEN_2022_PROGRAM) for data, count in token]
    associated = [
        (ASSOCIATED, data, count) for data, count in ((b"", 6), (b"\x00", 7), (b"\x01", 6), (b"\x02", 7), (b"\x01", 5))
    ]
    memos = [(MEMO, "Grüße".encode(), 0), (MEMO, b"", 0), (MEMO, b"\xff", 1)]
    return [*system, *tokens, *associated, *memos]


def _instruction(program: Pubkey, data: bytes, count: int) -> Instruction:
    return Instruction(program, data, [AccountMeta(one, is_signer=False, is_writable=True) for one in _OTHERS[:count]])


def _shown(found: Json) -> tuple[Json, Sequence[Json]]:
    return found["transaction"]["message"]["instructions"], found["meta"]["innerInstructions"]


@pytest.mark.validator(smoke=True)
async def test_instructions_are_parsed_as_by_a_validator(rpc: Client, validator: Node) -> None:
    await rpc.localnet.airdrop(PAYER.pubkey(), SOL)
    fund(validator)
    cases = [_instruction(*case) for case in _cases()]
    for batch in _batches(cases, 6):
        theirs, ours = on_validator(validator, *batch), await on_embedded_chain(rpc, *batch)

        assert _shown(ours)[0] == _shown(theirs)[0]


@pytest.mark.validator(smoke=True)
async def test_inner_instructions_and_priority_fee_are_those_of_a_validator(rpc: Client, validator: Node) -> None:
    await rpc.localnet.airdrop(PAYER.pubkey(), SOL)
    fund(validator)
    front = [set_compute_unit_limit(300_001), set_compute_unit_price(12_345)]
    mint = Pubkey.create_with_seed(PAYER.pubkey(), "mint", TOKEN_PROGRAM)
    await on_embedded_chain(rpc, *_new_mint(mint))
    on_validator(validator, *_new_mint(mint))
    create = create_idempotent_associated_token_account(PAYER.pubkey(), PAYER.pubkey(), mint)
    again = pay(PAYER, _OTHERS[0], SOL // 100)
    for instructions in ([*front, create], [front[1], again], [front[1], create, again], [*front, again]):
        theirs, ours = on_validator(validator, *instructions), await on_embedded_chain(rpc, *instructions)

        assert _shown(ours) == _shown(theirs)
        assert ours["meta"]["fee"] == theirs["meta"]["fee"] > 5000
        for found in (ours, theirs):
            spent = found["meta"]["preBalances"][0] - found["meta"]["postBalances"][0]
            received = sum(found["meta"]["postBalances"][1:]) - sum(found["meta"]["preBalances"][1:])
            assert spent - received == found["meta"]["fee"]


def _new_mint(mint: Pubkey) -> list[Instruction]:
    # It holds more than any chain's rent asks for.
    create = create_account_with_seed(
        CreateAccountWithSeedParams(
            from_pubkey=PAYER.pubkey(),
            to_pubkey=mint,
            base=PAYER.pubkey(),
            seed="mint",
            lamports=SOL // 100,
            space=82,
            owner=TOKEN_PROGRAM,
        )
    )
    accounts = [AccountMeta(mint, is_signer=False, is_writable=True)]
    return [create, Instruction(TOKEN_PROGRAM, b"\x14\x06" + bytes(PAYER.pubkey()) + b"\x00", accounts)]


def _batches(cases: list[Instruction], size: int) -> list[list[Instruction]]:
    return [cases[start : start + size] for start in range(0, len(cases), size)]


async def test_transfer_shows_its_amount_and_authority(rpc: Client) -> None:
    wallet, source = await rpc.usdc_wallet(1_000)
    other, target = await rpc.usdc_wallet(0)
    mint = rpc.localnet.usdc_mint
    signature = await rpc.send(rpc.signed(wallet, pay_usdc(mint, source, target, wallet.pubkey(), 400)))

    found = await rpc("getTransaction", signature, PARSED)

    [shown] = found["transaction"]["message"]["instructions"]
    assert shown == {
        "program": "spl-token",
        "programId": str(TOKEN_PROGRAM),
        "parsed": {
            "type": "transferChecked",
            "info": {
                "source": str(source),
                "mint": str(mint),
                "destination": str(target),
                "tokenAmount": {"uiAmount": 0.0004, "decimals": 6, "amount": "400", "uiAmountString": "0.0004"},
                "authority": str(wallet.pubkey()),
            },
        },
        "stackHeight": 1,
    }
    assert other.pubkey() != wallet.pubkey()


def test_no_bytes_make_the_parser_fail() -> None:
    programs = [str(one) for one in (SYSTEM, TOKEN_PROGRAM, TOKEN_2022_PROGRAM, ASSOCIATED, MEMO, _OTHERS[0])]
    names = [str(one) for one in _OTHERS]
    for program, tag, size, count in itertools.product(programs, range(256), (0, 1, 8, 41), (0, 2, 8)):
        found = parsed_instruction(program, names[:count], bytes([tag]) + b"\xff" * size)
        assert found is None or found.keys() == {"program", "parsed"}


async def test_payer_that_cannot_pay_the_priority_fee_is_refused(rpc: Client) -> None:
    poor = await rpc.wallet(1_000_000)
    front = [set_compute_unit_limit(1_000_000), set_compute_unit_price(2_000_000)]

    result = await rpc("simulateTransaction", encoded(rpc.signed(poor, *front)), {"encoding": "base64"})

    assert result["value"]["err"] is not None
    assert await rpc("getBalance", str(poor.pubkey()), {"commitment": "processed"}) is not None
