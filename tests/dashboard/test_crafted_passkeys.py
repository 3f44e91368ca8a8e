"""Passkeys that no browser made: what cannot be one is refused as any other, and nothing of it is stored."""

import json
import math
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from webauthn.helpers import bytes_to_base64url

from app.access.keyring import system
from app.access.recorder import Recorder
from app.core.actors import Actor
from app.core.event_catalogue import EVENTS
from app.core.timestamps import now_ms
from app.people.service import invite
from app.store.audit import SERVICE, LogEntry, LogFilter, log_entries
from app.store.feed import FeedFilter, feed
from app.store.people import invitations, passkeys, people_of, person
from tests.dashboard.authenticators import Authenticator, Json
from tests.dashboard.browsing import Crafted, join_with, sign_in
from tests.support.service_world import ServiceWorld, error_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

_JSON = {"accept": "application/json"}


def _invited(world: ServiceWorld) -> str:
    by = system(world.org, "test")
    return world.service.db.write_now(lambda conn: invite(conn, by, "A", "viewer", now_ms())).token


def _stored(world: ServiceWorld) -> list[Any]:
    """What making a passkey can leave behind, apart from the use of its challenge."""
    tables = (passkeys, invitations)
    return world.service.db.read_now(
        lambda conn: [*(conn.execute(one.select()).all() for one in tables), people_of(conn, world.org)]
    )


async def _make(me: Crafted, made: Callable[[Json], Json]) -> httpx.Response:
    """Give whoever is signed in the passkey that is made of the options."""
    csrf = await me.csrf()
    options = (await me.post("/dashboard/passkey/options", {"name": "Ada"}, csrf=csrf, **_JSON)).json()
    credential = json.dumps(made(options))
    return await me.post("/dashboard/passkey", {"name": "Ada", "credential": credential}, csrf=csrf, **_JSON)


async def _sign(visitor: Crafted, signed: Callable[[Json], Json]) -> httpx.Response:
    """Sign in with what is made of the options."""
    csrf = await visitor.csrf("/dashboard/sign-in")
    options = (await visitor.post("/dashboard/sign-in/options", {}, csrf=csrf, **_JSON)).json()
    return await visitor.post(
        "/dashboard/sign-in/passkey", {"credential": json.dumps(signed(options))}, csrf=csrf, **_JSON
    )


def _with_challenge(challenge: object) -> Callable[[Json], Json]:
    client = bytes_to_base64url(json.dumps({"challenge": challenge}).encode())
    return lambda _options: {"id": "eA", "response": {"clientDataJSON": client}}


def _with_id(given: object) -> Callable[[Json], Json]:
    return lambda options: {**Authenticator().signed(options), "id": given}


async def _failures(world: ServiceWorld) -> int:
    """How many failed authentications the service's log counts until now."""
    recorder = world.service.part(Recorder)
    recorder._close(math.inf)
    for _ in range(2):  # the first may wait for a write that began before
        await recorder.tick()
    only = LogFilter(action="authentication.failed")
    found = world.service.db.read_now(lambda conn: log_entries(conn, SERVICE, only, limit=100)).data
    return sum(one.details["count"] for one in found if isinstance(one, LogEntry))


@pytest.mark.proves("event person.joined")
async def test_passkey_made_and_used_without_a_browser_signs_in(world: ServiceWorld) -> None:
    device, visitor = Authenticator(), Crafted(world)
    assert (await join_with(visitor, _invited(world), device.made)).json()["location"] == "/dashboard?done=joined"
    assert (await _sign(Crafted(world), device.signed)).json() == {"location": "/dashboard"}
    events = world.service.db.read_now(lambda conn: feed(conn, world.org, FeedFilter(types=["person.joined"]))).data
    assert set(events[0].payload) - {"timestamp"} == set(EVENTS["person.joined"].fields)
    joined = world.service.db.read_now(lambda conn: person(conn, events[0].payload["person_id"]))
    assert joined is not None
    assert joined.created_by == Actor("system", "test")
    # A device may attest itself by the key that it made.
    own = Authenticator()

    def attested(options: Json) -> Json:
        return own.made(options, fmt="packed", statement=lambda data: {"alg": -7, "sig": own.sign(data)})

    assert (await join_with(Crafted(world), _invited(world), attested)).status_code == 200


@pytest.mark.proves("POST /dashboard/sign-in/passkey")
@pytest.mark.parametrize(
    "forged",
    [
        pytest.param(_with_challenge("\ud800"), id="challenge with a lone surrogate"),
        pytest.param(_with_challenge("\0"), id="challenge with a zero byte"),
        pytest.param(_with_challenge("é"), id="challenge beyond ASCII"),
        pytest.param(_with_challenge("A" * 10_000), id="long challenge"),
        pytest.param(_with_challenge(""), id="empty challenge"),
        pytest.param(_with_challenge(5), id="challenge of a number"),
        pytest.param(_with_id("\ud800"), id="id with a lone surrogate"),
        pytest.param(_with_id("\0"), id="id with a zero byte"),
        pytest.param(_with_id("A" * 10_000), id="long id"),
        pytest.param(_with_id([]), id="id of a list"),
        pytest.param(lambda options: {**Authenticator().signed(options), "response": "\ud800"}, id="no response"),
    ],
)
async def test_forged_answer_is_refused_and_counted(world: ServiceWorld, forged: Callable[[Json], Json]) -> None:
    before = await _failures(world)
    error_of(await _sign(Crafted(world), forged), 401, "authentication_failed")
    assert await _failures(world) == before + 1


@pytest.mark.parametrize("accept", ["text/html", "application/json"])
@pytest.mark.parametrize(
    ("page", "path", "fields"),
    [
        ("sign-in", "sign-in", {"admin_key": "avk_test_nonsense"}),
        ("sign-in", "sign-in/passkey", {"credential": "{}"}),
        ("join", "join/options", {"token": "nonsense", "name": "A"}),
        ("join", "join", {"token": "nonsense", "name": "A", "credential": "{}"}),
    ],
)
async def test_failed_sign_in_counts_once(
    world: ServiceWorld, page: str, path: str, fields: dict[str, str], accept: str
) -> None:
    visitor = Crafted(world)
    csrf, before = await visitor.csrf(f"/dashboard/{page}"), await _failures(world)

    answer = await visitor.post(f"/dashboard/{path}", fields, csrf=csrf, accept=accept)

    assert answer.status_code == 401
    assert await _failures(world) == before + 1


_OFF_THE_CURVE = {1: 2, 3: -7, -1: 1, -2: b"\1" * 32, -3: b"\2" * 32}
_NO_PASSKEYS = [
    pytest.param({"cose": {}}, id="empty key"),
    pytest.param({"cose": {1: 2, 3: -7}}, id="key without its point"),
    pytest.param({"cose": {1: 99}}, id="key without an algorithm"),
    pytest.param({"cose": {1: 99, 3: -7}}, id="key of an unknown type"),
    pytest.param({"cose": 5}, id="key that is a number"),
    pytest.param({"cose": b"\4"}, id="key that is a string"),
    pytest.param({"cose": _OFF_THE_CURVE}, id="point off the curve"),
    pytest.param({"cose": {**_OFF_THE_CURVE, -2: 1, -3: 2}}, id="point of numbers"),
    pytest.param({"cose": {**Authenticator().cose, -1: 99}}, id="unknown curve"),
    pytest.param({"cose": {**Authenticator().cose, 3: -257}}, id="key of another algorithm"),
    pytest.param({"cose": {1: 3, 3: -257, -1: b"\1", -2: b"\1"}}, id="RSA key of a bit"),
    pytest.param({"cose": {1: 1, 3: -8, -1: 6, -2: b"\1"}}, id="short key of Ed25519"),
    pytest.param({"fmt": "packed", "statement": lambda _: {"alg": -7, "sig": b"x", "x5c": b"zz"}}, id="bytes as x5c"),
    pytest.param({"fmt": "packed", "statement": lambda _: {"alg": -7, "sig": b"x", "x5c": [5]}}, id="number in x5c"),
    pytest.param({"fmt": "packed", "statement": lambda _: {"alg": -7, "sig": b"x"}}, id="wrong attestation"),
    pytest.param({"fmt": "tpm", "statement": lambda _: {}}, id="empty attestation"),
]


@pytest.mark.proves("POST /dashboard/passkey")
@pytest.mark.parametrize("changes", _NO_PASSKEYS)
async def test_what_is_no_passkey_is_refused_and_not_stored(world: ServiceWorld, changes: Json) -> None:
    me, token = Crafted(world, sign_in(world, "admin")), _invited(world)
    before = _stored(world)
    for answer in (
        await _make(me, lambda options: Authenticator().made(options, **changes)),
        await join_with(Crafted(world), token, lambda options: Authenticator().made(options, **changes)),
    ):
        error_of(answer, 401, "authentication_failed")
    assert _stored(world) == before


async def test_id_that_is_not_the_attested_one_is_refused(world: ServiceWorld) -> None:
    me, device, other = Crafted(world, sign_in(world, "admin")), Authenticator(), Authenticator(b"x" * 1_500)
    before = _stored(world)
    for made in (
        other.made,
        lambda options: {**device.made(options), "response": other.made(options)["response"]},
        lambda options: {**device.made(options), "id": "\ud800", "rawId": "\ud800"},
    ):
        error_of(await _make(me, made), 401, "authentication_failed")
    assert _stored(world) == before


@pytest.mark.proves("POST /dashboard/passkey")
async def test_known_passkey_is_refused_without_saying_that_it_is_known(world: ServiceWorld) -> None:
    me, theirs, mine = Crafted(world, sign_in(world, "admin")), Authenticator(), Authenticator()
    assert (await join_with(Crafted(world), _invited(world), theirs.made)).status_code == 200
    assert (await _make(me, mine.made)).status_code == 200
    token = _invited(world)
    before = _stored(world)
    bad = error_of(
        await _make(me, lambda options: Authenticator().made(options, cose=_OFF_THE_CURVE)),
        401,
        "authentication_failed",
    )

    attempts: list[Awaitable[httpx.Response]] = [
        _make(me, mine.made),
        _make(me, Authenticator(theirs.credential_id).made),
        join_with(Crafted(world), token, theirs.made),
        join_with(Crafted(world), token, Authenticator(mine.credential_id).made),
    ]
    for attempt in attempts:
        assert error_of(await attempt, 401, "authentication_failed")["message"] == bad["message"]
    assert _stored(world) == before
    # The invitation was not used up.
    assert (await join_with(Crafted(world), token, Authenticator().made)).status_code == 200


@pytest.mark.proves("POST /dashboard/join")
async def test_challenge_counts_only_for_what_it_was_given_for(world: ServiceWorld) -> None:
    me, token = Crafted(world, sign_in(world, "admin")), _invited(world)
    csrf, before = await me.csrf(), _stored(world)

    async def options(path: str, **fields: str) -> Json:
        answer = await me.post(f"/dashboard/{path}/options", {"name": "Ada", **fields}, csrf=csrf, **_JSON)
        return answer.json()  # type: ignore[no-any-return]

    async def refused(path: str, credential: Json, **fields: str) -> None:
        sent = {"name": "Ada", "credential": json.dumps(credential), **fields}
        error_of(await me.post(f"/dashboard/{path}", sent, csrf=csrf, **_JSON), 401, "authentication_failed")

    await refused("join", Authenticator().made(await options("passkey")), token=token)
    await refused("passkey", Authenticator().made(await options("join", token=token)))
    assert _stored(world) == before
