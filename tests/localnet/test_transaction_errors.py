"""The wording of transaction errors."""

from typing import Any

import pytest
from solders.transaction_status import InstructionErrorFieldless, TransactionErrorFieldless

from app.localnet import transaction_errors


@pytest.mark.parametrize(
    ("err", "text"),
    [
        ("BlockhashNotFound", "Blockhash not found"),
        ({"InstructionError": [2, {"Custom": 6000}]}, "Error processing Instruction 2: custom program error: 0x1770"),
        (
            {"InstructionError": [0, "MissingRequiredSignature"]},
            "Error processing Instruction 0: missing required signature for instruction",
        ),
        (
            {"InsufficientFundsForRent": {"account_index": 3}},
            "Transaction results in an account (3) with insufficient funds for rent",
        ),
        ({"DuplicateInstruction": 1}, "Transaction contains a duplicate instruction (1) that is not allowed"),
        ("AnErrorOfTheFuture", "AnErrorOfTheFuture"),
    ],
)
def test_errors_are_worded_as_by_a_validator(err: Any, text: str) -> None:
    assert transaction_errors.describe(err) == text


def _names(enumeration: Any) -> list[str]:
    return [name for name, value in vars(enumeration).items() if isinstance(value, enumeration)]


@pytest.mark.parametrize("name", _names(TransactionErrorFieldless))
def test_every_transaction_error_has_a_sentence(name: str) -> None:
    assert name in transaction_errors._TRANSACTION


@pytest.mark.parametrize("name", _names(InstructionErrorFieldless))
def test_every_instruction_error_has_a_sentence(name: str) -> None:
    assert name in transaction_errors._INSTRUCTION
