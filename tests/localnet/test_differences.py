"""The differences between the embedded chain and a validator are exactly the differences in the guide."""

import re
from pathlib import Path
from typing import Any

import pytest

import app.docs
from app.localnet.dispatch import METHODS
from tests.support.both_chains import PAYER, fund, on_embedded_chain, on_validator
from tests.support.localnet import SOL, Client, encoded, pay
from tests.validator.node import Node, RpcError

_GUIDE = (Path(app.docs.__file__).parent / "guides/clusters.md").read_text()
_METHOD_NOT_FOUND = -32601
_SYSTEM = "11111111111111111111111111111111"
_SYSVAR = "SysvarC1ock11111111111111111111111111111111"


def _named(opening: str) -> set[str]:
    """Return the names in the bullet of the guide that begins with `opening`."""
    [bullet] = re.findall(rf"^- {re.escape(opening)}(.*?)(?=^- |^\n)", _GUIDE, re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`(\w+)`", bullet))


def _fields(value: Any, path: str = "") -> set[str]:
    """Return the paths of all members of an answer."""
    if isinstance(value, dict):
        members = [(f"{path}.{name}", member) for name, member in value.items()]
    else:
        members = [(f"{path}[]", item) for item in value] if isinstance(value, list) else []
    return {here for here, _ in members} | {below for here, member in members for below in _fields(member, here)}


@pytest.mark.validator(smoke=True)
async def test_the_guide_names_every_missing_method(rpc: Client, validator: Node) -> None:
    missing = _named("Missing methods:")

    for method in sorted(missing):
        assert (await rpc.failure(method)).code == _METHOD_NOT_FOUND
        assert _code(validator, method) != _METHOD_NOT_FOUND
    for method in METHODS:
        assert _code(validator, method) != _METHOD_NOT_FOUND
    assert not missing & METHODS.keys()


def _code(node: Node, method: str) -> int | None:
    try:
        node.call(method)
    except RpcError as error:
        code: int = error.args[0]["code"]
        return code
    return None


@pytest.mark.validator(smoke=True)
async def test_answers_have_the_fields_of_a_validator(rpc: Client, validator: Node) -> None:
    await rpc.localnet.airdrop(PAYER.pubkey(), SOL)
    fund(validator)
    transfer = pay(PAYER, PAYER.pubkey(), 1)
    theirs, ours = on_validator(validator, transfer), await on_embedded_chain(rpc, transfer)

    assert _fields(ours) == _fields(theirs)
    assert ours["meta"]["costUnits"] == theirs["meta"]["costUnits"]
    parameters = str(PAYER.pubkey()), {"limit": 1, "commitment": "confirmed"}
    listed = validator.call("getSignaturesForAddress", *parameters), await rpc("getSignaturesForAddress", *parameters)
    assert _fields(listed[1]) == _fields(listed[0])
    for address in (str(PAYER.pubkey()), _SYSTEM, _SYSVAR):
        parameters = address, {"encoding": "base64", "commitment": "confirmed"}
        accounts = validator.call("getAccountInfo", *parameters), await rpc("getAccountInfo", *parameters)
        assert _fields(accounts[1]) == _fields(accounts[0])
        assert accounts[1]["value"]["rentEpoch"] == accounts[0]["value"]["rentEpoch"]


@pytest.mark.validator(smoke=True)
async def test_the_guide_names_the_fields_that_a_simulation_lacks(rpc: Client, validator: Node) -> None:
    await rpc.localnet.airdrop(PAYER.pubkey(), SOL)
    fund(validator)
    transaction = encoded(rpc.signed(PAYER, pay(PAYER, PAYER.pubkey(), 1)))
    config = {"encoding": "base64", "commitment": "confirmed"}
    theirs = validator.call("simulateTransaction", transaction, {**config, "replaceRecentBlockhash": True})
    ours = await rpc("simulateTransaction", transaction, {**config, "replaceRecentBlockhash": True})

    assert ours["value"].keys() <= theirs["value"].keys()
    assert theirs["value"].keys() - ours["value"].keys() == _named("A simulation omits")
