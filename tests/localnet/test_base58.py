"""Base58 against the compiled encoder of Solana's types."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.pubkey import Pubkey
from solders.signature import Signature

from app.localnet import base58


@given(st.binary(max_size=300))
def test_decoding_returns_what_was_encoded(raw: bytes) -> None:
    assert base58.decode(base58.encode(raw)) == raw


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=64, max_size=64))
def test_addresses_and_signatures_look_as_everywhere(address: bytes, signature: bytes) -> None:
    assert base58.encode(address) == str(Pubkey(address))
    assert base58.encode(signature) == str(Signature(signature))


@pytest.mark.parametrize("text", ["0", "O", "I", "l", "1é", "1 1"])
def test_other_characters_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="InvalidCharacter"):
        base58.decode(text)
