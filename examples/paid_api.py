"""An API that charges 0.01 USDC for the weather, with x402's middleware: `uvicorn paid_api:app --port 8521`."""

import os

from fastapi import FastAPI
from x402 import x402ResourceServer
from x402.http import FacilitatorConfig, HTTPFacilitatorClient
from x402.http.middleware.fastapi import payment_middleware
from x402.mechanisms.svm.exact.server import ExactSvmScheme

NETWORK = os.environ["NETWORK"]
FACILITATOR = os.environ.get("FACILITATOR", "http://127.0.0.1:8510")

server = x402ResourceServer(HTTPFacilitatorClient(FacilitatorConfig(url=FACILITATOR)))
server.register(NETWORK, ExactSvmScheme())
accepts = {
    "scheme": "exact",
    "network": NETWORK,
    "payTo": os.environ["PAY_TO"],
    # On a public cluster the price "$0.01" is enough. A local chain has its own mint, so name it.
    "price": {"amount": "10000", "asset": os.environ["MINT"]},
    "maxTimeoutSeconds": 60,
}
routes = {"GET /weather": {"accepts": accepts, "description": "The weather", "mimeType": "application/json"}}

app = FastAPI()
app.middleware("http")(payment_middleware(routes, server))


@app.get("/weather")
async def weather() -> dict[str, object]:
    """Return the paid resource."""
    return {"weather": "sunny", "temperature": 21}
