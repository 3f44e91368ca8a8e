"""Challenges of MPP, made here, and a paid resource of the public packages."""

import base64
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from starlette.responses import Response

from tests.support import node
from tests.support.service_world import Json
from tests.x402.conftest import Market
from tests.x402.servers import free_port


def encoded(content: Any) -> str:
    text = content if isinstance(content, str) else json.dumps(content)
    return base64.urlsafe_b64encode(text.encode()).rstrip(b"=").decode()


def charge(market: Market, **changed: Any) -> Json:
    """What a challenge of the method solana asks for. Details are changed by name, and None removes a member."""
    details = {"network": "localnet", "decimals": 6, "feePayer": True, "feePayerKey": str(market.facilitator.pubkey())}
    request: Json = {"amount": "10000", "currency": str(market.world.localnet.usdc_mint), "recipient": market.payee}
    request = {**request, "methodDetails": {**details, **changed.pop("methodDetails", {})}, **changed}
    return {name: value for name, value in request.items() if value is not None}


def challenge(asked: Any, /, **changed: str | None) -> str:
    """A challenge in the form of WWW-Authenticate."""
    given = {"id": "one", "realm": "shop", "method": "solana", "intent": "charge", "request": encoded(asked)}
    named = {name: value for name, value in {**given, **changed}.items() if value is not None}
    return "Payment " + ", ".join(f'{name}="{value}"' for name, value in named.items())


def demanding(*challenges: str, body: bytes = b'{"type": "payment-required"}') -> Response:
    answer = Response(body, 402, media_type="application/problem+json")
    for one in challenges:
        answer.headers.append("WWW-Authenticate", one)
    return answer


@contextlib.asynccontextmanager
async def shop(market: Market) -> AsyncIterator[str]:
    """A paid resource of the public packages; the query of a request chooses what it demands."""
    key = market.folder / "sponsor.json"
    key.write_text(json.dumps(list(bytes(market.facilitator))))
    mint = str(market.world.localnet.usdc_mint)
    environment = {"RPC": market.rpc, "MINT": mint, "PAY_TO": market.payee, "SPONSOR": str(key)}
    async with node.started("mpp", "resource.mjs", free_port(), **environment) as url:
        yield url
