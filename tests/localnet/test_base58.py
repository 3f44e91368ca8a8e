"""Base58 in parameters, against the types of solders."""

import pytest
from based58 import b58encode
from hypothesis import given
from hypothesis import strategies as st
from solders.pubkey import Pubkey
from solders.signature import Signature

from app.localnet.params import base58_bytes


@given(st.binary(max_size=300))
def test_decoding_returns_what_was_encoded(raw: bytes) -> None:
    assert base58_bytes(b58encode(raw).decode()) == raw


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=64, max_size=64))
def test_addresses_and_signatures_decode_to_their_bytes(address: bytes, signature: bytes) -> None:
    assert base58_bytes(str(Pubkey(address))) == address
    assert base58_bytes(str(Signature(signature))) == signature


@pytest.mark.parametrize("text", ["0", "O", "I", "l", "1é", "1 1"])
def test_other_characters_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="InvalidCharacter"):
        base58_bytes(text)
