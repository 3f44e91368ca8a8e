"""The API's codes for the program's errors."""

from app.core.errors import CATALOGUE
from app.submission.program_errors import code_of
from tests.support.vm import CODEC


def test_every_error_of_the_program_has_a_code_of_the_api() -> None:
    codes = {one["name"]: code_of(one["name"]) for one in CODEC.idl["errors"]}
    assert set(codes.values()) <= set(CATALOGUE)
    assert codes["ZeroAmount"] == "invalid_amount"
    assert codes["AllowlistUnsorted"] == code_of("") == "transaction_failed"
