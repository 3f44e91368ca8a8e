"""Facilitators that settle plain transfers only, of version 1 and of the Python package, and their resources."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from x402.facilitator import x402FacilitatorSync
from x402.mechanisms.svm.exact.facilitator import ExactSvmScheme
from x402.mechanisms.svm.exact.v1.facilitator import ExactSvmSchemeV1
from x402.mechanisms.svm.signers import FacilitatorKeypairSigner
from x402.schemas import PaymentPayload, PaymentRequirements
from x402.schemas.v1 import PaymentPayloadV1, PaymentRequirementsV1

from tests.support.http import site
from tests.x402.conftest import Market
from tests.x402.servers import facilitator, started
from tests.x402.test_hostile import demanding, old_offer


@contextlib.asynccontextmanager
async def old_shop(market: Market) -> AsyncIterator[str]:
    """A resource of version 1, settled by the TypeScript package's facilitator."""
    options: Any = {"rpc": market.rpc, "network": market.network, "v1": "solana"}
    async with (
        facilitator(market.folder, market.facilitator, **options) as settling,
        _resource(market, settling) as url,
    ):
        yield url


@contextlib.asynccontextmanager
async def pythons_shops(market: Market, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[str, str]]:
    """A resource of version 2 and one of version 1, settled by the Python package's facilitator."""
    environment = {"NETWORK": market.network, "MINT": str(market.world.localnet.usdc_mint), "PAY_TO": market.payee}
    async with (
        pythons_facilitator(market, monkeypatch) as settling,
        _resource(market, settling) as old,
        started("resource.mjs", FACILITATOR=settling, **environment) as new,
    ):
        yield f"{new}/weather", f"{old}/"


@contextlib.asynccontextmanager
async def _resource(market: Market, settling: str) -> AsyncIterator[str]:
    """A resource of version 1, which asks the facilitator as that version does."""

    async def handler(request: Request) -> Response:
        header = request.headers.get("x-payment")
        if header is None:
            return demanding(old_offer(market), version=1)
        body = {"paymentPayload": json.loads(base64.b64decode(header)), "paymentRequirements": old_offer(market)}
        async with httpx.AsyncClient(timeout=30) as client:
            verified = (await client.post(f"{settling}/verify", json=body)).json()
            if not verified["isValid"]:
                return demanding(old_offer(market), version=1, error=verified["invalidReason"])
            done = (await client.post(f"{settling}/settle", json=body)).json()
        assert done["success"], done
        return PlainTextResponse("sunny")

    async with site(handler) as url:
        yield url


@contextlib.asynccontextmanager
async def pythons_facilitator(market: Market, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    """The Python package's facilitator, which knows public networks only."""
    monkeypatch.setattr("x402.mechanisms.svm.signers.normalize_network", lambda network: network)
    signer = FacilitatorKeypairSigner([market.facilitator], market.rpc)
    found = x402FacilitatorSync()
    found.register([market.network], ExactSvmScheme(signer))
    found.register_v1(["solana"], ExactSvmSchemeV1(signer))

    async def handler(request: Request) -> Response:
        if request.method == "GET":
            return JSONResponse(found.get_supported().model_dump(mode="json", by_alias=True))
        body = await request.json()
        payload, wanted = body["paymentPayload"], body["paymentRequirements"]
        old = payload["x402Version"] == 1
        given: Any = (
            (PaymentPayloadV1 if old else PaymentPayload).model_validate(payload),
            (PaymentRequirementsV1 if old else PaymentRequirements).model_validate(wanted),
        )
        step = found.verify if request.url.path.endswith("verify") else found.settle
        # It waits for the chain, which runs in this loop.
        said = await asyncio.to_thread(step, *given)
        return JSONResponse(said.model_dump(mode="json", by_alias=True))

    async with site(handler) as url:
        yield url
    # It keeps its connections to the chain, and has no way to close them.
    for client in signer._clients.values():
        client._provider.session.close()
