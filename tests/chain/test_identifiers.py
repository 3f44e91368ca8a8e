"""Identifiers follow from the chain, and malformed ones are recognised."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.core.identifiers import (
    PRESET_POLICY_IDS,
    is_id,
    new_key,
    policy_id,
    policy_key,
    random_id,
    transaction_id,
    wallet_id,
)


@pytest.mark.proves("Conventions: Identifiers")
def test_wallet_id_is_the_start_of_the_vault_address() -> None:
    vault = Keypair().pubkey()
    same_start = Pubkey(bytes(vault)[:16] + bytes(16))
    assert wallet_id(vault) == wallet_id(str(vault)) == wallet_id(same_start)
    assert wallet_id(vault) != wallet_id(Keypair().pubkey())
    assert is_id("wal_", wallet_id(vault))


@pytest.mark.proves("Conventions: Identifiers")
@given(st.binary(min_size=16, max_size=16))
def test_policy_id_gives_its_key_back(key: bytes) -> None:
    assert policy_key(policy_id(key)) == key


@pytest.mark.proves("Conventions: Identifiers")
@pytest.mark.parametrize("name", PRESET_POLICY_IDS)
def test_presets_keep_their_names(name: str) -> None:
    assert policy_key(name) == name.encode().ljust(16, b"\0")
    assert policy_id(policy_key(name)) == name
    assert is_id("pol_", name)


@pytest.mark.proves("Conventions: Identifiers")
def test_transaction_id_follows_from_the_chain_alone() -> None:
    message = hashlib.sha256(b"what was signed")
    digest = hashlib.sha256(message.digest() + b"\x01\x00\x02\x00" + b"payment").digest()[:16]
    assert transaction_id(message.hexdigest(), 1, 2, "payment") == "tx_" + policy_id(digest).removeprefix("pol_")


def test_transaction_ids_differ_by_place_and_type() -> None:
    message = hashlib.sha256(b"what was signed").hexdigest()
    ids = {
        transaction_id(message, instruction, inner, kind)
        for instruction in (0, 1)
        for inner in (0, 1)
        for kind in ("a2a_send", "escrow_lock")
    }
    assert len(ids) == 8


@pytest.mark.parametrize(
    "text",
    [
        "",
        "wal_",
        "wal_0",
        "pol_" + "1" * 16,
        "wal_" + "1" * 15,
        "wal_" + "z" * 23,
        "wal_" + "z" * 10_000,
        "wal_é",
        "wal_0OIl",
    ],
)
def test_malformed_ids_are_recognised(text: str) -> None:
    assert not is_id("wal_", text)


def test_random_ids_are_well_formed_and_differ() -> None:
    assert is_id("tx_", random_id("tx_"))
    assert random_id("tx_") != random_id("tx_")
    assert len(new_key()) == 16
