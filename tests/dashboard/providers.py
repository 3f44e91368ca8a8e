"""Providers of OpenID Connect: the certified one of the public packages, and one that lies as a test says."""

import asyncio
import base64
import contextlib
import hashlib
import json
import socket
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from app.people.models import CompanyCallback
from tests.dashboard.browsing import Crafted, csrf_of
from tests.support.http import serving
from tests.support.service_world import Json, ServiceWorld

CLIENT_ID = "agent vault"
#: Characters that forms and Basic authentication treat in different ways.
CLIENT_SECRET = "s3cret+/%:&= of the client"


def settings(issuer: str) -> Json:
    """The service's settings for a provider."""
    client = {"oidc_client_id": CLIENT_ID, "oidc_client_secret": CLIENT_SECRET}
    return {"oidc_issuer": issuer, "oidc_name": "Acme", **client}


def new_key(kid: str) -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": kid, "use": "sig"})


@dataclass
class LyingProvider:
    """A provider that is honest until a test changes what it says; `issuer` is its address."""

    issuer: str = ""
    keys: list[RSAKey] = field(default_factory=lambda: [new_key("first")])
    description: Json = field(default_factory=dict)
    """What the description says instead."""
    subject: str = "ada"
    claims: Json = field(default_factory=dict)
    """What the ID token says instead; None leaves a claim out."""
    make_token: Callable[[Json], str] | None = None
    """Signs the ID token instead."""
    answers: dict[str, Callable[[], Response]] = field(default_factory=dict)
    """What a path answers instead."""
    silent: asyncio.Event | None = None
    """Until this is set, nothing is answered."""
    asked: list[str] = field(default_factory=list)
    _codes: dict[str, dict[str, str]] = field(default_factory=dict)

    def be_honest(self) -> None:
        fresh = LyingProvider(self.issuer, self.keys)
        for name in ("description", "subject", "claims", "make_token", "answers", "silent"):
            setattr(self, name, getattr(fresh, name))

    def authorise(self, url: str) -> dict[str, str]:
        """Somebody signs in where a browser was sent: what it brings back."""
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        assert asked["response_type"] == "code"
        assert asked["code_challenge_method"] == "S256"
        code = base64url(hashlib.sha256(asked["state"].encode()).digest())
        self._codes[code] = asked
        return {"code": code, "state": asked["state"]}

    def id_token(self, asked: dict[str, str]) -> str:
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "sub": self.subject,
            "aud": CLIENT_ID,
            "iat": now,
            "exp": now + 60,
            "nonce": asked["nonce"],
        }
        if "max_age" in asked:
            claims["auth_time"] = now
        claims = {name: value for name, value in (claims | self.claims).items() if value is not None}
        if self.make_token is not None:
            return self.make_token(claims)
        return jwt.encode({"alg": "RS256", "kid": self.keys[-1].kid}, claims, self.keys[-1])

    async def _answer(self, request: Request) -> Response:
        path = request.url.path
        self.asked.append(path)
        if self.silent is not None:
            await self.silent.wait()
        if path in self.answers:
            return self.answers[path]()
        if path == "/keys":
            return JSONResponse({"keys": [key.as_dict(private=False) for key in self.keys]})
        if path == "/token":
            return await self._token(request)
        said = {
            "issuer": self.issuer,
            "authorization_endpoint": f"{self.issuer}/authorize",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "token_endpoint_auth_methods_supported": ["client_secret_post"],
        }
        return JSONResponse(said | self.description)

    async def _token(self, request: Request) -> Response:
        form = await request.form()
        if (form["client_id"], form["client_secret"]) != (CLIENT_ID, CLIENT_SECRET):
            return JSONResponse({"error": "invalid_client"}, 401)
        asked = self._codes.pop(str(form["code"]), None)
        challenge = base64url(hashlib.sha256(str(form["code_verifier"]).encode()).digest())
        if asked is None or asked["code_challenge"] != challenge or asked["redirect_uri"] != form["redirect_uri"]:
            return JSONResponse({"error": "invalid_grant"}, 400)
        return JSONResponse({"access_token": "opaque", "token_type": "Bearer", "id_token": self.id_token(asked)})


@contextlib.asynccontextmanager
async def lying_provider() -> AsyncIterator[LyingProvider]:
    """Serve such a provider on the machine."""
    made = LyingProvider()
    routes = [Route("/{path:path}", made._answer, methods=["GET", "POST"])]
    with socket.create_server(("127.0.0.1", 0)) as bound:
        made.issuer = f"http://127.0.0.1:{bound.getsockname()[1]}"
        async with serving(Starlette(routes=routes), bound, 30):
            yield made


def redirection() -> Response:
    return RedirectResponse("http://127.0.0.1:9/", 307)


def base64url(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def unsigned(header: Json, claims: Json) -> str:
    """A token without a signature."""
    return ".".join(map(base64url, (json.dumps(header).encode(), json.dumps(claims).encode(), b"")))


class Visit(Crafted):
    """A browser without a browser, on its way to the provider and back."""

    def __init__(self, world: ServiceWorld, provider: LyingProvider, token: str | None = None) -> None:
        super().__init__(world, token)
        self.provider = provider

    async def ask(self, path: str, fields: dict[str, Any] | None = None) -> Any:
        # A page that everybody is shown, signed in or not.
        csrf = await self.csrf("/dashboard/join")
        return await self.post(path, fields, csrf=csrf, accept="application/json")

    async def begin(self, path: str = "/dashboard/sign-in/openid", fields: dict[str, Any] | None = None) -> str:
        """Where the browser is sent."""
        answer = await self.ask(path, fields)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["location"])

    async def come_back(self, brought: dict[str, str]) -> Any:
        """What the service answers to what the browser brings, by GET and then by POST."""
        shown = await self.client.get("/dashboard/openid/return", params=brought)
        assert shown.status_code == 200, shown.text
        csrf = csrf_of(shown.text)
        sent = {name: value for name, value in brought.items() if name in CompanyCallback.model_fields}
        return await self.post("/dashboard/openid/return", sent, csrf=csrf, accept="application/json")

    async def sign_in(self, path: str = "/dashboard/sign-in/openid", fields: dict[str, Any] | None = None) -> Any:
        """The whole way."""
        return await self.come_back(self.provider.authorise(await self.begin(path, fields)))
