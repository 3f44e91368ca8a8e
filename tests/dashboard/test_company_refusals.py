"""The company's sign-in without a browser: a provider that is down, slow or lies, and crafted ways back."""

import asyncio
import gzip
import hashlib
import hmac
import json
import logging
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import pytest_asyncio
from joserfc import jwt
from pydantic import ValidationError
from starlette.responses import JSONResponse, Response

from app.access.keyring import system
from app.access.recorder import Recorder
from app.api.ending import EndCredential
from app.core.paths import ConfigurationError
from app.core.settings import Settings
from app.core.timestamps import now_ms
from app.database.record_tables import insert_record
from app.people.openid import CompanySignIn
from app.people.service import end, invite
from app.store.audit import SERVICE, LogEntry, LogFilter, log_entries
from app.store.identities import KnownIdentity
from app.store.identities import requests as openid_requests
from app.store.identities import table as identities
from app.store.people import invitations
from app.store.people import sessions as browser_sessions
from app.store.people import table as people
from app.submission.claim import Claim
from tests.dashboard.browsing import Crafted, add_person, forget_step_up
from tests.dashboard.providers import (
    CLIENT_ID,
    CLIENT_SECRET,
    LyingProvider,
    Visit,
    base64url,
    lying_provider,
    new_key,
    redirection,
    settings,
    unsigned,
)
from tests.support.service_world import Json, ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")

#: Seconds that the provider has in these tests.
_PATIENCE = 2.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def serving_provider() -> AsyncIterator[LyingProvider]:
    async with lying_provider() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(
    tmp_path_factory: pytest.TempPathFactory, serving_provider: LyingProvider
) -> AsyncIterator[ServiceWorld]:
    folder, given = tmp_path_factory.mktemp("service"), settings(serving_provider.issuer)
    async with ServiceWorld(folder, oidc_timeout=_PATIENCE, **given) as opened:
        yield opened


@pytest.fixture
def provider(serving_provider: LyingProvider, world: ServiceWorld) -> LyingProvider:
    """The provider, honest again; the service has forgotten what it said of itself."""
    serving_provider.be_honest()
    world.service.part(CompanySignIn)._known = None
    return serving_provider


def _invitation(world: ServiceWorld, role: Any = "viewer") -> str:
    by = system(world.org, "test")
    return world.service.db.write_now(lambda conn: invite(conn, by, "Guest", role, now_ms())).token


def _known(world: ServiceWorld, provider: LyingProvider, subject: str) -> str:
    """A person with an account at the provider."""
    by = add_person(world, "admin")
    made = KnownIdentity(provider.issuer, subject, by.actor.id, now_ms())
    world.service.db.write_now(lambda conn: insert_record(conn, made))
    return by.actor.id


def _state(world: ServiceWorld) -> list[Any]:
    """What a refused sign-in must not change."""
    tables = (people, identities, invitations, browser_sessions)
    return world.service.db.read_now(lambda conn: [conn.execute(one.select()).all() for one in tables])


async def _reason(world: ServiceWorld, org: str = SERVICE) -> str:
    """Why somebody was refused last, as the audit log has it."""
    recorder = world.service.part(Recorder)
    for _ in range(2):
        await recorder.tick()
    # The next test's refusal is none that is only counted.
    recorder._counts.clear()
    found = world.service.db.read_now(lambda conn: log_entries(conn, org, LogFilter(action="access.refused"), limit=1))
    assert isinstance(found.data[0], LogEntry)
    return str(found.data[0].details["reason"])


@pytest.mark.proves("POST /dashboard/join/openid")
async def test_company_account_joins_by_invitation_and_signs_in(world: ServiceWorld, provider: LyingProvider) -> None:
    provider.subject = "joins"
    provider.claims = {"email": "boss@example.com", "email_verified": True}
    token = _invitation(world, "operator")
    guest = Visit(world, provider)

    answer = await guest.sign_in("/dashboard/join/openid", {"token": token, "name": "Grace"})

    assert answer.json()["location"] == "/dashboard?done=joined-company"
    page = (await guest.client.get("/dashboard")).text
    assert "Grace" in page
    assert "(operator)" in page
    again = Visit(world, provider)
    provider.claims = {"email": "other@example.com"}
    assert (await again.sign_in()).json()["location"] == "/dashboard"
    assert "Grace" in (await again.client.get("/dashboard")).text
    # The account shows no confirmation that is new: changes ask for one.
    asked = await again.post("/dashboard/sign-out")
    assert asked.status_code == 303
    assert (await again.client.get("/dashboard")).status_code == 303


@pytest.mark.proves("action access.refused")
async def test_account_that_nobody_invited_is_refused_whatever_its_email(
    world: ServiceWorld, provider: LyingProvider
) -> None:
    _known(world, provider, "invited")
    provider.subject, provider.claims = "stranger", {"email": "invited", "preferred_username": "invited"}
    before, stranger = _state(world), Visit(world, provider)

    answer = await stranger.sign_in()

    assert answer.status_code == 401
    assert "is not linked to anyone" in answer.json()["error"]["message"]
    assert await _reason(world) == "not_invited"
    assert _state(world) == before


async def test_same_subject_of_another_issuer_is_nobody(world: ServiceWorld, provider: LyingProvider) -> None:
    by = add_person(world, "admin")
    other = KnownIdentity("https://other.example", "twin", by.actor.id, now_ms())
    world.service.db.write_now(lambda conn: insert_record(conn, other))
    provider.subject = "twin"
    assert (await Visit(world, provider).sign_in()).status_code == 401
    assert await _reason(world) == "not_invited"


async def test_removed_person_signs_in_no_more_by_the_company(world: ServiceWorld, provider: LyingProvider) -> None:
    provider.subject = "leaver"
    person_id = _known(world, provider, "leaver")
    admin = Visit(world, provider)
    provider.subject = "stayer"
    _known(world, provider, "stayer")
    await admin.sign_in()
    await admin.sign_in("/dashboard/step-up/openid")
    assert (await admin.post(f"/dashboard/people/{person_id}/remove")).status_code == 303
    provider.subject = "leaver"
    assert (await Visit(world, provider).sign_in()).status_code == 401
    # Invited again, the same account joins.
    fields = {"token": _invitation(world), "name": "Back"}
    assert (await Visit(world, provider).sign_in("/dashboard/join/openid", fields)).status_code == 200


def _hs256(claims: Json, secret: bytes) -> str:
    signed = unsigned({"alg": "HS256", "typ": "JWT"}, claims).removesuffix(".")
    return f"{signed}.{base64url(hmac.new(secret, signed.encode(), hashlib.sha256).digest())}"


def _by_stranger(claims: Json, kid: str = "stranger", **header: Any) -> str:
    return jwt.encode({"alg": "RS256", "kid": kid, **header}, claims, _STRANGER)


_STRANGER = new_key("stranger")


_LIES: dict[str, tuple[Json | Callable[[LyingProvider, Json], str], str]] = {
    "another issuer": ({"iss": "https://evil.example"}, "iss"),
    "no issuer": ({"iss": None}, "iss"),
    "another nonce": ({"nonce": "of another sign-in"}, "nonce"),
    "no nonce": ({"nonce": None}, "nonce"),
    "nonce as a list": ({"nonce": ["x"]}, "nonce"),
    "another audience": ({"aud": "another client"}, "aud"),
    "audiences without azp": ({"aud": [CLIENT_ID, "another client"]}, "azp"),
    "azp of another": ({"aud": [CLIENT_ID, "another client"], "azp": "another client"}, "azp"),
    "expired": ({"exp": int(time.time()) - 31}, "exp"),
    "no end": ({"exp": None}, "exp"),
    "endless": ({"exp": "never"}, "exp"),
    "issued tomorrow": ({"iat": int(time.time()) + 86_400}, "iat"),
    "no subject": ({"sub": None}, "sub"),
    "empty subject": ({"sub": ""}, "sub"),
    "subject as a number": ({"sub": 5}, "sub"),
    "long subject": ({"sub": "x" * 256}, "sub"),
    "foreign letters": ({"sub": "ädä"}, "sub"),
    "signed in tomorrow": ({"auth_time": int(time.time()) + 86_400}, "auth_time"),
    "signed in true": ({"auth_time": True}, "auth_time"),
    "another access token": ({"at_hash": "x"}, "at_hash"),
    "algorithm none": (lambda _, claims: unsigned({"alg": "none"}, claims), "unsupported_algorithm"),
    "algorithm None": (lambda _, claims: unsigned({"alg": "None"}, claims), "unsupported_algorithm"),
    "HS256 with the client secret": (
        lambda _, claims: _hs256(claims, CLIENT_SECRET.encode()),
        "unsupported_algorithm",
    ),
    "HS256 with the public key": (
        lambda provider, claims: _hs256(claims, provider.keys[0].as_pem(private=False)),
        "unsupported_algorithm",
    ),
    "unknown key": (lambda _, claims: _by_stranger(claims), "key"),
    "another key of a known name": (lambda _, claims: _by_stranger(claims, "first"), "bad_signature"),
    "key in the token itself": (
        lambda _, claims: _by_stranger(claims, "first", jwk=_STRANGER.as_dict(private=False)),
        "bad_signature",
    ),
    "key elsewhere": (
        lambda _, claims: _by_stranger(claims, "first", jku="https://evil.example/keys"),
        "bad_signature",
    ),
    "no token": (lambda _provider, _claims: "", ""),
    "no dots": (lambda _provider, _claims: "x" * 100, ""),
    "nested deep": (lambda _, _claims: unsigned({"alg": "RS256"}, {}).replace(".", ".W" * 50_000, 1), ""),
}


@pytest.mark.proves("POST /dashboard/openid/return")
@pytest.mark.parametrize("lie", _LIES)
async def test_token_that_is_not_proven_signs_nobody_in(world: ServiceWorld, provider: LyingProvider, lie: str) -> None:
    subject = f"victim of {lie}".replace(" ", "-")
    _known(world, provider, subject)
    provider.subject = subject
    told, claim = _LIES[lie]
    if isinstance(told, dict):
        provider.claims = told
    else:
        tell = told
        provider.make_token = lambda claims: tell(provider, claims)
    before, visitor = _state(world), Visit(world, provider)

    answer = await visitor.sign_in()

    assert answer.status_code == 401, answer.text
    assert answer.json()["error"]["code"] == "authentication_failed"
    assert "set-cookie" not in answer.headers
    assert (await _reason(world)).startswith(f"id_token:{claim}")
    assert _state(world) == before


async def test_provider_may_change_its_keys(world: ServiceWorld, provider: LyingProvider) -> None:
    _known(world, provider, "rotates")
    provider.subject = "rotates"
    earlier = provider.keys
    assert (await Visit(world, provider).sign_in()).status_code == 200
    provider.keys = [new_key("second")]
    assert (await Visit(world, provider).sign_in()).status_code == 200
    # A key that the provider has no more proves nothing.
    provider.make_token = lambda claims: jwt.encode({"alg": "RS256", "kid": "first"}, claims, earlier[0])
    assert (await Visit(world, provider).sign_in()).status_code == 401
    provider.keys = earlier


def _gzipped(content: bytes, most: int | None = None) -> Response:
    return Response(gzip.compress(content)[:most], headers={"Content-Encoding": "gzip"})


def _closed() -> Response:
    return Response("<html>Service unavailable", 503)


_TROUBLES: dict[str, tuple[Callable[[LyingProvider], Any], str]] = {
    "another issuer": (lambda it: it.description.update(issuer="https://evil.example"), "issuer"),
    "an issuer with a slash": (lambda it: it.description.update(issuer=it.issuer + "/"), "issuer"),
    "no endpoint": (lambda it: it.description.update(token_endpoint=None), "endpoints"),
    "a script as endpoint": (
        lambda it: it.description.update(authorization_endpoint="javascript:alert(1)"),
        "endpoints",
    ),
    "plain http elsewhere": (lambda it: it.description.update(jwks_uri="http://192.0.2.1/keys"), "endpoints"),
    "a file": (lambda it: it.description.update(jwks_uri="file:///etc/passwd"), "endpoints"),
    "no secrets": (
        lambda it: it.description.update(token_endpoint_auth_methods_supported=["private_key_jwt"]),
        "client_authentication",
    ),
    "no description": (lambda it: it.answers.update({"/.well-known/openid-configuration": _closed}), "status"),
    "a redirection": (lambda it: it.answers.update({"/.well-known/openid-configuration": redirection}), "status"),
    "a list": (
        lambda it: it.answers.update({"/.well-known/openid-configuration": lambda: JSONResponse([])}),
        "malformed",
    ),
    "a megabyte": (
        lambda it: it.answers.update({"/.well-known/openid-configuration": lambda: Response(b" " * 1_000_000)}),
        "too_long",
    ),
    "no token": (lambda it: it.answers.update({"/token": _closed}), "status"),
    "a token elsewhere": (lambda it: it.answers.update({"/token": redirection}), "status"),
    "another client": (
        lambda it: it.answers.update({"/token": lambda: JSONResponse({"error": "invalid_client"}, 401)}),
        "client",
    ),
    "no keys": (lambda it: it.answers.update({"/keys": lambda: JSONResponse({"keys": []})}), "keys"),
    "broken keys": (
        lambda it: it.answers.update({"/keys": lambda: JSONResponse({"keys": [{"kty": "RSA", "n": 5}, 5]})}),
        "keys",
    ),
    "keys elsewhere": (lambda it: it.answers.update({"/keys": redirection}), "status"),
    "half a description": (
        lambda it: it.answers.update({"/.well-known/openid-configuration": lambda: _gzipped(b'{"issuer": "x"}', 20)}),
        "incomplete",
    ),
    "a packed megabyte": (
        lambda it: it.answers.update({"/.well-known/openid-configuration": lambda: _gzipped(b" " * 1_000_000)}),
        "too_long",
    ),
}


@pytest.mark.proves("error sign_in_unavailable")
@pytest.mark.parametrize("trouble", _TROUBLES)
async def test_provider_in_trouble_is_no_refusal_and_changes_nothing(
    world: ServiceWorld, provider: LyingProvider, trouble: str
) -> None:
    change, reason = _TROUBLES[trouble]
    change(provider)
    before, visitor = _state(world), Visit(world, provider)

    answer = await visitor.ask("/dashboard/sign-in/openid")
    if answer.status_code == 200:
        answer = await visitor.come_back(provider.authorise(answer.json()["location"]))

    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] == "sign_in_unavailable"
    assert "Nothing has changed" in answer.json()["error"]["message"]
    assert answer.headers["retry-after"]
    assert await _reason(world) == reason
    assert _state(world) == before


#: JSON of every type, and URLs that no browser can be sent to.
_WRONG: list[Any] = [
    None,
    True,
    5,
    1e400,
    "x",
    "",
    [],
    [5],
    [None],
    {},
    {"x": 1},
    "https://a.example/\ud800",
    "https://ü/",
]


async def _outcome(world: ServiceWorld, provider: LyingProvider) -> Any:
    """Return the answer to a sign-in, whichever of its requests ends it."""
    world.service.part(CompanySignIn)._known = None
    visitor = Visit(world, provider)
    answer = await visitor.ask("/dashboard/sign-in/openid")
    if answer.status_code == 200:
        answer = await visitor.come_back(provider.authorise(answer.json()["location"]))
    return answer


@pytest.mark.parametrize(
    "member",
    [
        "issuer",
        "authorization_endpoint",
        "token_endpoint",
        "jwks_uri",
        "token_endpoint_auth_methods_supported",
        "authorization_response_iss_parameter_supported",
    ],
)
async def test_member_of_a_wrong_type_makes_the_provider_unavailable(
    world: ServiceWorld, provider: LyingProvider, member: str
) -> None:
    for wrong in _WRONG:
        if member.startswith("authorization_response") and wrong is True:
            continue
        described = {
            "issuer": provider.issuer,
            "authorization_endpoint": f"{provider.issuer}/authorize",
            "token_endpoint": f"{provider.issuer}/token",
            "jwks_uri": f"{provider.issuer}/keys",
        }
        content = json.dumps(described | {member: wrong}).encode()
        provider.answers["/.well-known/openid-configuration"] = partial(Response, content)
        answer = await _outcome(world, provider)
        assert answer.status_code == 503, (member, wrong, answer.text)
        assert answer.json()["error"]["code"] == "sign_in_unavailable"
    # Its outcome goes into the audit log, so that the next test finds its own.
    await _reason(world)


async def test_member_of_a_wrong_type_elsewhere_is_no_internal_error(
    world: ServiceWorld, provider: LyingProvider
) -> None:
    key = provider.keys[0].as_dict(private=False)
    for wrong in _WRONG:
        for member in ("kty", "use", "key_ops", "alg", "kid", "n", "e", "x5c"):
            content = json.dumps({"keys": [key | {member: wrong}]}).encode()
            provider.answers = {"/keys": partial(Response, content)}
            assert (await _outcome(world, provider)).status_code in {200, 401, 503}, (member, wrong)
        for member in ("id_token", "access_token", "error"):
            content = json.dumps({"id_token": "x", member: wrong}).encode()
            for status in (200, 400):
                provider.answers = {"/token": partial(Response, content, status)}
                assert (await _outcome(world, provider)).status_code in {401, 503}, (member, wrong)
        provider.answers = {"/keys": partial(Response, json.dumps({"keys": wrong}))}
        assert (await _outcome(world, provider)).status_code == 503, wrong
    await _reason(world)


@pytest.mark.proves("error sign_in_unavailable", "Limits: Response of the company's sign-in")
async def test_silent_provider_is_given_up_and_asked_once_for_all(world: ServiceWorld, provider: LyingProvider) -> None:
    provider.silent = asyncio.Event()
    provider.asked.clear()
    visitors = [Visit(world, provider) for _ in range(5)]
    began = time.monotonic()

    answers = await asyncio.gather(*(one.ask("/dashboard/sign-in/openid") for one in visitors))

    assert [one.status_code for one in answers] == [503] * 5
    assert "did not answer within 2 seconds" in answers[0].json()["error"]["message"]
    assert time.monotonic() - began < 5
    assert len(provider.asked) == 1
    provider.silent.set()
    assert await _reason(world) == "timeout"


async def test_provider_that_is_down_leaves_passkeys_as_they_are(own_world: ServiceWorld) -> None:
    given = settings("http://127.0.0.1:9")
    await own_world.restart(
        **own_world.settings.model_validate({**own_world.settings.model_dump(), **given}).model_dump()
    )
    add_person(own_world, "admin")
    visitor = Visit(own_world, LyingProvider())
    page = (await visitor.client.get("/dashboard/sign-in")).text
    assert "Continue with Acme" in page
    assert "Sign in with a passkey" in page
    answer = await visitor.ask("/dashboard/sign-in/openid")
    assert answer.status_code == 503
    assert "cannot be reached" in answer.json()["error"]["message"]
    # A browser without scripts sees the same as a page.
    shown = await visitor.post("/dashboard/sign-in/openid", csrf=await visitor.csrf("/dashboard/sign-in"))
    assert shown.status_code == 503
    assert "Sign in unavailable" in shown.text


@pytest.mark.proves("Limits: Time to come back from the company's sign-in")
async def test_code_works_once(world: ServiceWorld, provider: LyingProvider) -> None:
    _known(world, provider, "replay")
    provider.subject = "replay"
    visitor = Visit(world, provider)
    brought = provider.authorise(await visitor.begin())
    thief = Visit(world, provider, visitor.token)
    assert (await visitor.come_back(brought)).status_code == 200
    before = _state(world)
    for one in (visitor, thief):
        assert (await one.come_back(brought)).status_code == 401
        assert await _reason(world) == "state"
    # Nor does a used code under a state that is new.
    fresh = parse_qs(urlsplit(await thief.begin()).query)["state"][0]
    assert (await thief.come_back({"code": brought["code"], "state": fresh})).status_code == 401
    assert await _reason(world) == "code"
    assert _state(world) == before


async def test_sign_in_of_one_browser_is_nothing_in_another(world: ServiceWorld, provider: LyingProvider) -> None:
    """An attacker's answer in a victim's browser would sign the victim in as the attacker."""
    _known(world, provider, "attacker")
    provider.subject = "attacker"
    attacker, victim = Visit(world, provider), Visit(world, provider)
    brought = provider.authorise(await attacker.begin())
    await victim.begin()
    before = _state(world)

    answer = await victim.come_back(brought)

    assert answer.status_code == 401
    assert "not started in this browser" in answer.json()["error"]["message"]
    assert await _reason(world) == "state"
    assert _state(world) == before
    # Nor does the attacker's code under the victim's own state: it is bound to the attacker's proof key.
    own = parse_qs(urlsplit(await victim.begin()).query)["state"][0]
    assert (await victim.come_back({"code": brought["code"], "state": own})).status_code == 401
    # It still works where it was begun.
    provider.authorise(await attacker.begin())


@pytest.mark.proves("GET /dashboard/openid/return")
async def test_way_back_needs_csrf_origin_and_post(world: ServiceWorld, provider: LyingProvider) -> None:
    _known(world, provider, "careful")
    provider.subject = "careful"
    visitor = Visit(world, provider)
    brought = provider.authorise(await visitor.begin())
    before = _state(world)
    csrf = await visitor.csrf("/dashboard/sign-in")
    assert (await visitor.post("/dashboard/openid/return", brought, csrf="0" * 64)).status_code == 403
    evil = await visitor.post("/dashboard/openid/return", brought, csrf=csrf, origin="http://evil.example")
    assert evil.status_code == 403
    for _ in range(2):
        assert (await visitor.client.get("/dashboard/openid/return", params=brought)).status_code == 200
    assert (await visitor.client.get("/dashboard/openid/return")).headers["location"] == "/dashboard"
    assert _state(world) == before
    assert (await visitor.come_back(brought)).status_code == 200


@pytest.mark.parametrize(
    ("brought", "status", "reason"),
    [
        ({"error": "access_denied"}, 401, "error:access_denied"),
        ({"error": "<b>x</b>"}, 401, "error:other"),
        ({}, 401, "error:other"),
        ({"error": "temporarily_unavailable"}, 503, "temporarily_unavailable"),
        ({"code": "x", "iss": "https://evil.example"}, 401, "iss"),
    ],
)
async def test_error_of_the_provider_is_said_in_our_own_words(
    world: ServiceWorld, provider: LyingProvider, brought: dict[str, str], status: int, reason: str
) -> None:
    visitor = Visit(world, provider)
    state = parse_qs(urlsplit(await visitor.begin()).query)["state"][0]
    answer = await visitor.come_back({"error_description": "Call 555", **brought, "state": state})
    assert answer.status_code == status
    assert "555" not in answer.text
    assert await _reason(world) == reason


async def test_provider_that_says_it_names_itself_must(world: ServiceWorld, provider: LyingProvider) -> None:
    provider.description = {"authorization_response_iss_parameter_supported": True}
    _known(world, provider, "named")
    provider.subject = "named"
    assert (await Visit(world, provider).sign_in()).status_code == 401
    assert await _reason(world) == "iss"
    visitor = Visit(world, provider)
    brought = provider.authorise(await visitor.begin())
    assert (await visitor.come_back({**brought, "iss": provider.issuer})).status_code == 200


@pytest.mark.proves("POST /dashboard/step-up/openid")
async def test_step_up_needs_the_same_person_who_signed_in_again(world: ServiceWorld, provider: LyingProvider) -> None:
    _known(world, provider, "confirms")
    _known(world, provider, "colleague")
    provider.subject = "confirms"
    me = Visit(world, provider)
    await me.sign_in()
    fields = {"name": "A", "role": "viewer"}
    # A sign-in by an account that was signed in at the provider confirms nothing.
    asked = await me.post("/dashboard/people/invite", fields)
    assert asked.status_code == 403
    assert "Confirm with Acme" in asked.text
    assert "data-passkey" not in asked.text
    url = await me.begin("/dashboard/step-up/openid")
    assert parse_qs(urlsplit(url).query)["max_age"] == ["0"]
    for subject, claims, reason in (
        ("confirms", {"auth_time": None}, "auth_time"),
        ("confirms", {"auth_time": int(time.time()) - 60}, "auth_time"),
        ("colleague", {}, "other_person"),
        ("stranger", {}, "other_person"),
    ):
        provider.subject, provider.claims = subject, claims
        assert (await me.sign_in("/dashboard/step-up/openid")).status_code == 401
        assert await _reason(world, world.org) == reason
        assert (await me.post("/dashboard/people/invite", fields)).status_code == 403
    provider.be_honest()
    provider.subject = "confirms"
    done = await me.sign_in("/dashboard/step-up/openid")
    assert done.json()["confirmed"] is True
    assert (await me.post("/dashboard/people/invite", fields)).status_code == 200
    forget_step_up(world)
    assert (await me.post("/dashboard/people/invite", fields)).status_code == 403


async def test_step_up_ends_with_the_session_that_began_it(world: ServiceWorld, provider: LyingProvider) -> None:
    _known(world, provider, "left")
    provider.subject = "left"
    me = Visit(world, provider)
    await me.sign_in()
    token = me.token
    brought = provider.authorise(await me.begin("/dashboard/step-up/openid"))
    await me.post("/dashboard/sign-out")
    assert (await Visit(world, provider, token).come_back(brought)).status_code == 401
    assert await _reason(world) == "signed_out"


@pytest.mark.proves("POST /dashboard/join/openid")
async def test_invitation_is_used_once_and_for_a_new_account_only(world: ServiceWorld, provider: LyingProvider) -> None:
    token = _invitation(world)
    fields = {"token": token, "name": "First"}
    first, second = Visit(world, provider), Visit(world, provider)
    provider.subject = "first"
    brought = provider.authorise(await first.begin("/dashboard/join/openid", fields))
    other = provider.authorise(await second.begin("/dashboard/join/openid", fields))
    assert (await first.come_back(brought)).status_code == 200
    before = _state(world)
    provider.subject = "second"
    assert (await second.come_back(other)).status_code == 401
    assert await _reason(world, world.org) == "invitation"
    assert (await second.ask("/dashboard/join/openid", fields)).status_code == 401
    assert _state(world) == before
    # Somebody who is a person already does not use another one up.
    provider.subject = "first"
    fields = {"token": _invitation(world, "admin"), "name": "Again"}
    before = _state(world)
    answer = await Visit(world, provider).sign_in("/dashboard/join/openid", fields)
    assert answer.status_code == 401
    assert await _reason(world, world.org) == "known"
    assert _state(world) == before


async def test_account_joins_by_no_invitation_of_somebody_removed_meanwhile(
    world: ServiceWorld, provider: LyingProvider
) -> None:
    add_person(world, "admin")
    by = add_person(world, "admin")
    made = world.service.db.write_now(lambda conn: invite(conn, by, "Guest", "admin", now_ms()))
    visitor = Visit(world, provider)
    provider.subject = "accomplice"
    brought = provider.authorise(await visitor.begin("/dashboard/join/openid", {"token": made.token, "name": "Guest"}))
    claim, only = Claim(world.service.db), EndCredential()
    await end(world.service, system(world.org, "test"), claim, by.actor.id, only)
    before = _state(world)
    assert (await visitor.come_back(brought)).status_code == 401
    assert await _reason(world, world.org) == "invitation"
    assert _state(world) == before


async def test_cookie_is_replaced_when_somebody_signs_in(world: ServiceWorld, provider: LyingProvider) -> None:
    _known(world, provider, "fresh")
    provider.subject = "fresh"
    visitor = Visit(world, provider)
    url = await visitor.begin()
    earlier = visitor.token
    answer = await visitor.come_back(provider.authorise(url))
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "SameSite=lax" in answer.headers["set-cookie"]
    assert visitor.token != earlier
    assert earlier is not None
    assert (await Crafted(world, earlier).client.get("/dashboard")).status_code == 303


@pytest.mark.proves("Limits: Time to come back from the company's sign-in")
async def test_request_that_waited_too_long_is_void(world: ServiceWorld, provider: LyingProvider) -> None:
    visitor = Visit(world, provider)
    brought = provider.authorise(await visitor.begin())
    world.service.db.write_now(
        lambda conn: conn.execute(openid_requests.update().values(expires_at=openid_requests.c.expires_at - 600_001))
    )
    assert (await visitor.come_back(brought)).status_code == 401
    assert await _reason(world) == "state"


async def test_secret_and_code_are_in_no_log_and_no_row(
    world: ServiceWorld, provider: LyingProvider, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    _known(world, provider, "quiet")
    provider.subject = "quiet"
    visitor = Visit(world, provider)
    brought = provider.authorise(await visitor.begin())
    rows = world.service.db.read_now(lambda conn: str(conn.execute(openid_requests.select()).all()))
    assert (await visitor.come_back(brought)).status_code == 200
    provider.answers["/token"] = _closed
    assert (await Visit(world, provider).sign_in()).status_code == 503
    # The test's own browser is httpx.
    logged = [record.getMessage() for record in caplog.records if record.name != "httpx"]
    said = "".join([*logged, capsys.readouterr().out, repr(world.settings)])
    assert CLIENT_SECRET not in said
    assert brought["code"] not in said
    assert visitor.token is not None
    assert visitor.token not in rows


async def test_service_without_a_provider_has_no_company_sign_in(own_world: ServiceWorld) -> None:
    add_person(own_world, "admin")
    visitor = Visit(own_world, LyingProvider())
    assert "Continue with" not in (await visitor.client.get("/dashboard/sign-in")).text
    assert "Continue with" not in (await visitor.client.get("/dashboard/join")).text
    assert (await visitor.ask("/dashboard/sign-in/openid")).status_code == 404
    answer = await visitor.come_back({"state": "x", "code": "y"})
    assert answer.status_code == 404


@pytest.mark.parametrize(
    "wrong",
    [
        {"oidc_issuer": "http://sso.example.com"},
        {"oidc_issuer": "ftp://sso.example.com"},
        {"oidc_issuer": "https://sso.example.com?tenant=1"},
        {"oidc_issuer": "https://user@sso.example.com"},
        {"oidc_client_id": None},
        {"oidc_client_secret": None},
        {"oidc_client_secret_file": "both"},
        {"oidc_issuer": None},
    ],
)
async def test_settings_of_the_company_sign_in_are_complete(wrong: Json) -> None:
    given = settings("https://sso.example.com")
    Settings(**given)
    with pytest.raises(ValidationError) as refused:
        Settings(**{**given, **wrong})
    assert CLIENT_SECRET not in str(refused.value)


async def test_client_secret_may_be_in_a_file(tmp_path: Path) -> None:
    given = settings("https://sso.example.com")
    del given["oidc_client_secret"]
    path = tmp_path / "secret"
    path.write_text(f"{CLIENT_SECRET}\n")
    assert CompanySignIn(Settings(**given, oidc_client_secret_file=path))._secret == CLIENT_SECRET
    path.write_text("\n")
    for missing in (path, tmp_path / "none"):
        with pytest.raises(ConfigurationError, match="cannot be read, or is empty"):
            CompanySignIn(Settings(**given, oidc_client_secret_file=missing))
