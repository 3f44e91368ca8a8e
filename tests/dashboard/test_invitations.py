"""Open invitations: who made them, how they are withdrawn, and that they end with their inviter."""

import re

import pytest

from app.access.keyring import Principal, system
from app.core.errors import AuthenticationError
from app.core.timestamps import now_ms
from app.people.models import PersonRole
from app.people.service import Invited, invitation_of, invite
from app.store.people import table as people
from tests.dashboard.browsing import Crafted, add_person, log, refusals, sign_in
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")

_NOT_VALID = "This invitation is not valid"


def _invite(world: ServiceWorld, by: Principal, name: str = "Guest", role: PersonRole = "viewer") -> Invited:
    return world.service.db.write_now(lambda conn: invite(conn, by, name, role, now_ms()))


async def _refused(world: ServiceWorld, made: Invited) -> list[str]:
    """What each step of joining by an invitation says if it refuses it."""
    visitor = Crafted(world)
    fields, csrf = {"token": made.token, "name": "Guest"}, await visitor.csrf("/dashboard/join")
    answers = [
        await visitor.post(path, {**fields, **more}, csrf=csrf, accept="application/json")
        for path, more in (("/dashboard/join/options", {}), ("/dashboard/join", {"credential": '{"id": "x"}'}))
    ]
    return [one.json()["error"]["message"] for one in answers if one.status_code == 401 and _NOT_VALID in one.text]


def _withdraw(made: Invited) -> str:
    return f"/dashboard/invitations/{made.invitation.invitation_id}/withdraw"


async def _listed(admin: Crafted) -> dict[str, str]:
    """The rows of the open invitations by the path that withdraws each, as text."""
    page = (await admin.client.get("/dashboard/people")).text
    rows = [one for one in re.findall(r"<tr>.*?</tr>", page, re.DOTALL) if "/withdraw" in one]
    paths = [re.findall(r'action="([^"]*/withdraw)"', one)[0] for one in rows]
    return {path: re.sub(r"<[^>]*>|\s", " ", row) for path, row in zip(paths, rows, strict=True)}


@pytest.mark.proves("POST /dashboard/people/{person_id}/remove", "action invitation.withdraw")
async def test_removed_admin_does_not_come_back_by_their_own_invitation(world: ServiceWorld) -> None:
    admin, leaver, stayer = (
        Crafted(world, sign_in(world, "admin")),
        add_person(world, "admin"),
        add_person(world, "admin"),
    )
    own, others = _invite(world, leaver, role="admin"), [_invite(world, stayer), _invite(world, system(world.org, "x"))]

    assert (await admin.post(f"/dashboard/people/{leaver.actor.id}/remove")).status_code == 303

    assert len(await _refused(world, own)) == 2
    assert [await _refused(world, one) for one in others] == [[], []]
    listed = await _listed(admin)
    assert _withdraw(own) not in listed
    assert {_withdraw(one) for one in others} <= listed.keys()
    [ended] = [one for one in log(world, "invitation.withdraw") if one.object == own.invitation.invitation_id]
    assert ended.details == {"role": "admin"}
    assert ended.request_id == log(world, "person.remove")[0].request_id


async def test_invitation_that_was_under_way_when_its_inviter_left_is_refused(world: ServiceWorld) -> None:
    admin, leaver = Crafted(world, sign_in(world, "admin")), add_person(world, "admin")
    await admin.post(f"/dashboard/people/{leaver.actor.id}/remove")

    made = _invite(world, leaver, role="admin")

    assert len(await _refused(world, made)) == 2


async def test_invitation_of_somebody_who_is_no_admin_any_more_is_refused(world: ServiceWorld) -> None:
    add_person(world, "admin")
    by = add_person(world, "admin")
    made = _invite(world, by)
    assert await _refused(world, made) == []
    world.service.db.write_now(
        lambda conn: conn.execute(people.update().where(people.c.person_id == by.actor.id).values(role="operator"))
    )
    assert len(await _refused(world, made)) == 2


@pytest.mark.proves("GET /dashboard/people")
async def test_open_invitation_says_who_made_it_and_as_what(world: ServiceWorld) -> None:
    admin = Crafted(world, sign_in(world, "admin"))
    made = _invite(world, add_person(world, "admin", "Grace Hopper"), "Linus", "operator")
    by_command = _invite(world, system(world.org, "command_line"))

    listed = await _listed(admin)

    assert listed[_withdraw(made)].split()[:4] == ["Linus", "Operator", "Grace", "Hopper"]
    assert "The service: command line" in listed[_withdraw(by_command)]


@pytest.mark.proves("POST /dashboard/invitations/{invitation_id}/withdraw", "action invitation.withdraw")
async def test_invitation_is_withdrawn_once_and_on_record(world: ServiceWorld) -> None:
    admin, made = Crafted(world, sign_in(world, "admin")), _invite(world, add_person(world, "admin"))
    other = _invite(world, system(world.org, "command_line"))

    answer = await admin.post(_withdraw(made))

    assert answer.headers["location"] == "/dashboard/people?done=invitation-withdrawn"
    assert len(await _refused(world, made)) == 2
    assert await _refused(world, other) == []
    entry = log(world, "invitation.withdraw")[0]
    assert (entry.actor.type, entry.object) == ("person", made.invitation.invitation_id)
    again = await admin.post(_withdraw(made))
    assert (again.status_code, "no open invitation with this id" in again.text) == (404, True)
    assert len(log(world, "invitation.withdraw")) == len({one.object for one in log(world, "invitation.withdraw")})


async def test_join_that_began_before_the_withdrawal_comes_too_late(world: ServiceWorld) -> None:
    admin, made = Crafted(world, sign_in(world, "admin")), _invite(world, system(world.org, "command_line"))
    began = now_ms()
    assert (await admin.post(_withdraw(made))).status_code == 303
    with pytest.raises(AuthenticationError, match=_NOT_VALID):
        world.service.db.read_now(lambda conn: invitation_of(conn, made.invitation.digest, began))


@pytest.mark.proves("POST /dashboard/invitations/{invitation_id}/withdraw")
async def test_only_admins_of_the_organisation_who_confirmed_withdraw(world: ServiceWorld) -> None:
    made = _invite(world, add_person(world, "admin"))
    elsewhere = await world.organisation("elsewhere")
    for role in ("viewer", "operator"):
        assert (await Crafted(world, sign_in(world, role)).post(_withdraw(made))).status_code == 403
    stranger = Crafted(world, sign_in(world, "admin", org=elsewhere))
    assert (await stranger.post(_withdraw(made))).status_code == 404
    unconfirmed = await Crafted(world, sign_in(world, "admin", stepped_up=False)).post(_withdraw(made))
    assert (unconfirmed.status_code, "Confirm that it is you" in unconfirmed.text) == (403, True)
    forger = Crafted(world, sign_in(world, "admin"))
    assert (await forger.post(_withdraw(made), csrf="0" * 64)).status_code == 403
    assert (await refusals(world))[0][1] == "POST /dashboard/invitations/{invitation_id}/withdraw"
    assert await _refused(world, made) == []
