"""Completion proofs that prove nothing are refused and leave the escrow unchanged."""

import base64
import hashlib

import pytest
import pytest_asyncio
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from tests.support.escrows import A2A, OUTPUT, Agent, agent, of, shows_output, signs_output, terms
from tests.support.service_world import Json, ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", name="sides")
async def _sides(world: ServiceWorld) -> tuple[Agent, Agent]:
    """Two agents whose completions are refused."""
    return await agent(world, funds="900"), await agent(world)


async def _unchanged(world: ServiceWorld, escrow: Json) -> None:
    assert await world.ok("GET", of(escrow)) == escrow


@pytest.mark.proves("error invalid_proof", "CompleteEscrow(proof)")
@pytest.mark.parametrize("kind", ["output_hash", "signed_attestation", "webhook_callback"])
@pytest.mark.parametrize("proof", ["", "sha256:", "sha256:zz", OUTPUT, "é" * 64, base64.b64encode(bytes(95)).decode()])
async def test_malformed_proof_is_invalid_and_changes_nothing(
    world: ServiceWorld, sides: tuple[Agent, Agent], kind: str, proof: str
) -> None:
    paying, receiving = sides
    made = await paying.lock(receiving, "0.01")

    response = await receiving.call("POST", of(made, "complete"), {"proofType": kind, "proof": proof})

    error_of(response, 422, "invalid_proof")
    await _unchanged(world, made)


@pytest.mark.proves("error invalid_proof")
async def test_proofs_that_prove_nothing_are_refused_by_the_program(
    world: ServiceWorld, sides: tuple[Agent, Agent]
) -> None:
    paying, receiving = sides
    made, other = await paying.lock(receiving), await paying.lock(receiving)
    sessions = receiving.session_key, paying.session_key
    verifier = world.service.signers.require_arbiter()
    good = signs_output(world, made, "signed_attestation", sessions[0])
    raw = bytearray(base64.b64decode(good["proof"]))
    raw[5] ^= 1
    forged = base64.b64encode(bytes(raw)).decode()
    raw[5] ^= 1
    raw[-1] ^= 1
    other_output = base64.b64encode(bytes(raw)).decode()

    for proof in (
        {**good, "proof": forged},
        {**good, "proof": other_output},
        {**good, "proofType": "webhook_callback"},
        signs_output(world, made, "signed_attestation", sessions[1]),
        signs_output(world, made, "signed_attestation", verifier),
        signs_output(world, made, "webhook_callback", sessions[0]),
        signs_output(world, other, "signed_attestation", sessions[0]),
        signs_output(world, {**made, "task_hash": f"sha256:{OUTPUT}"}, "signed_attestation", sessions[0]),
    ):
        error_of(await receiving.call("POST", of(made, "complete"), proof), 422, "invalid_proof")
    await _unchanged(world, made)
    assert (await receiving.ok("POST", of(made, "complete"), good))["status"] == "released"


@pytest.mark.proves("CreateEscrow(expectedOutputHash, proofTypes)", "Escrow(expected_output_hash, proof_types)")
async def test_agreed_kinds_and_output_bind_every_proof(world: ServiceWorld, sides: tuple[Agent, Agent]) -> None:
    paying, receiving = sides
    made = await paying.lock(
        receiving, proofTypes=["signed_attestation"], expectedOutputHash=f"sha256:{OUTPUT}", amount="1"
    )
    other = "ab" * 32

    kind = await receiving.call("POST", of(made, "complete"), shows_output())
    assert "output_hash" in error_of(kind, 422, "invalid_proof")["message"]
    signed = signs_output(world, made, "signed_attestation", receiving.session_key, other)
    output = await receiving.call("POST", of(made, "complete"), signed)
    assert "expects" in error_of(output, 422, "invalid_proof")["message"]
    await _unchanged(world, made)


async def test_receiving_agent_cannot_learn_the_expected_hash_before_release(
    world: ServiceWorld, sides: tuple[Agent, Agent]
) -> None:
    paying, receiving = sides
    output = hashlib.sha256(b"Known to one side").hexdigest()
    expected = f"sha256:{output}"
    made = await paying.lock(receiving, expectedOutputHash=expected, amount="1")

    seen = await receiving.ok("GET", of(made))
    listed = (await receiving.ok("GET", f"{A2A}?limit=1"))["data"]
    assert {one["expected_output_hash"] for one in [seen, *listed]} == {None}
    assert expected not in (await receiving.call("GET", "/v1/events?limit=100")).text
    on_chain = await world.service.chain.account(Pubkey.from_string(made["chain_address"]))
    assert on_chain is not None
    assert bytes.fromhex(output) not in on_chain.data
    for reader in (made, await paying.ok("GET", of(made)), await world.ok("GET", of(made))):
        assert reader["expected_output_hash"] == expected

    released = await receiving.ok("POST", of(made, "complete"), shows_output(output))
    assert (released["status"], released["expected_output_hash"]) == ("released", expected)


async def test_receiver_without_a_live_session_attests_nothing(own_world: ServiceWorld) -> None:
    world = own_world
    paying, key = await agent(world), Keypair()
    receiving = await world.wallet(funds=None)
    made = await world.ok("POST", A2A, {**terms(paying, str(receiving["wallet_id"])), "timeoutSeconds": 2_000_000})
    proof = signs_output(world, made, "signed_attestation", key)
    error = error_of(await world.call("POST", of(made, "complete"), proof), 422, "invalid_proof")
    assert "no session" in error["message"]

    expired = Agent(world, receiving, world.key("agent", receiving["wallet_id"]), await world.session(receiving))
    await world.later(86_401)

    proof = signs_output(world, made, "signed_attestation", expired.session_key)
    error = error_of(await world.call("POST", of(made, "complete"), proof), 422, "invalid_proof")
    assert "has expired" in error["message"]


@pytest.mark.proves("CompleteEscrow(outputUrl)")
@pytest.mark.parametrize(
    "url",
    [
        *("files", "https://", "javascript:alert(1)", "javascript://a%0aalert(1)", "file:///etc/passwd", "ftp://a/b"),
        *("data://text/html,x", "https://a b", "x" * 2_049),
    ],
)
async def test_output_url_is_a_url(sides: tuple[Agent, Agent], url: str) -> None:
    paying, receiving = sides
    made = await paying.lock(receiving, "0.01")

    error_of(
        await receiving.call("POST", of(made, "complete"), {**shows_output(), "outputUrl": url}), 400, "invalid_request"
    )
