"""Declares pages: `page` for views, `action` for the effect of a form.

```python
@page("/vaults/{wallet_id}", roles=READERS)
async def wallet(view: View) -> Response:
    return view.render("wallet.html", wallet=...)

@action("/vaults/{wallet_id}/freeze", roles=OPERATORS, back=wallet)
async def freeze(view: View) -> str:
    ...                              # the capability's use case, with view.principal
    return view.url("vaults", id)    # the browser's next page
```

Paths are below `/dashboard`. A page is served by GET and an action by POST. A page that is not public redirects
visitors without a session to the sign-in page. An action's request must come from a page of the dashboard: it is
refused without the CSRF token of the browser's cookie, or with a different `Origin`. An action with `step_up`, or one
that raises ``step_up_required``, also needs a step-up within the last five minutes. An action with `brakes` has a rate
limit of its own; one with `lifts` waits in the queue of the brakes. If an action raises another ApiError, its `back`
page is shown with the typed values and the message. The message is placed next to the field that the error names, if
any. Scripts get the error as JSON. A change that the organisation's authority must sign offline becomes a transaction
that waits on the page `Signatures`. This requires that the action uses a claim from `view.claim()` or `once`.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeVar, TypeVarTuple, Union
from urllib.parse import quote, urlencode

from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from app.access.auth import ADMINS, authorise, client_address, count
from app.access.keyring import Principal
from app.api.declared import Endpoint
from app.api.forms import Arguments, Fields, InvalidFormError, read_form, validated
from app.api.replay import prepare
from app.core.actors import Role
from app.core.errors import ApiError, AuthenticationError, OutdatedError, UnavailableError
from app.core.identifiers import random_id
from app.core.timestamps import now_ms
from app.dashboard.forms.error_messages import messages_of
from app.dashboard.forms.notices import NOTICES
from app.dashboard.progress import Progress, progress
from app.dashboard.refusals import record
from app.dashboard.site import HEADERS, ROOT, Site, template, wants_json
from app.dashboard.weights import WEIGHT
from app.people.company import confirmations
from app.people.openid import CompanySignIn
from app.people.passkeys import Ceremony
from app.people.sessions import SignedIn, csrf_token, digest, new_token, recognise
from app.submission.claim import Claim
from app.submission.context import Service
from app.submission.plan import AwaitingSignatureError

Changed = TypeVar("Changed")
Given = TypeVarTuple("Given")
Roles = Collection[Role] | None  # None makes a page public
Back = Union["PageRoute", None]
Shown = Callable[["View"], Awaitable[Response]]
#: An action returns a response, or the address of the browser's next page.
Done = Callable[["View"], Awaitable[Response | str]]

_CSRF, _DONE = "csrf", "done"
#: The hidden field of a form that takes effect once.
FORM_KEY = "idempotency_key"
#: The field of the button that leads from a confirmation back to the filled form.
CHANGE = "change"
_MAX_DIGITS = 15
_NO_PERSON = "An admin key may only view, freeze and pause here. Invite a person with `agent-vault people invite`."


@dataclass(slots=True)
class View:
    """A request for a page: the browser's session, the typed form, and the errors in the form."""

    request: Request
    site: Site
    service: Service
    token: str
    signed_in: SignedIn | None
    now: int
    #: The organisation's `Progress`, read before the page's other data. The page may lack later changes.
    progress: Progress = field(default_factory=Progress)
    form: Fields = field(default_factory=list)
    errors: Mapping[str, str] = field(default_factory=dict)
    #: True if the browser already has the dashboard's cookie.
    known: bool = True
    #: True if the authority's key is elsewhere, so that its transactions are signed offline.
    sign_offline: bool = False

    @property
    def principal(self) -> Principal:
        """The principal of the person or admin key that is signed in."""
        assert self.signed_in is not None
        return self.signed_in.principal(client_address(self.request), self.request.state.request_id)

    @property
    def alone(self) -> bool:
        """True if an admin key is signed in, not a person. An organisation with people accepts no admin key here."""
        return self.signed_in is not None and self.signed_in.person is None

    @property
    def only_brakes(self) -> bool:
        """True if an admin key is signed in and may only view, freeze and pause. Always False on a localnet."""
        return self.alone and self.service.identity.cluster != "localnet"

    @property
    def company(self) -> str | None:
        """The name of the company's sign-in provider, or None if none is configured."""
        return self.service.part(CompanySignIn).name

    @property
    def ceremony(self) -> Ceremony:
        """The WebAuthn ceremony of this browser."""
        return Ceremony(self.site.party, self.site.origin(self.request), digest(self.token), self.now)

    def claim(self) -> Claim:
        """Return a claim without an idempotency key, for a use case that makes a change."""
        claim = Claim(self.service.db, sign_offline=self.sign_offline)
        prepare(self.service, claim, self.principal, None)
        return claim

    def asks(
        self, change: Callable[[Service, Principal, Claim, *Given], Awaitable[Changed]], *given: *Given
    ) -> Callable[[Claim], Awaitable[Changed]]:
        """Return a use case with all its arguments bound except the claim."""
        return lambda claim: change(self.service, self.principal, claim, *given)

    @property
    def stepped_up(self) -> bool:
        """True if the session's last step-up is at most five minutes old."""
        return self.signed_in is not None and self.signed_in.stepped_up(self.now)

    def url(self, *parts: str, **query: str) -> str:
        """Return the address of a page of the dashboard."""
        path = "/".join([self.site.base, *(quote(part, safe="") for part in parts)])
        return f"{path}?{urlencode(query)}" if query else path

    @property
    def here(self) -> str:
        """The path and query of the request as seen by the browser."""
        query = self.request.url.query
        return self.site.party.prefix + self.request.url.path + (f"?{query}" if query else "")

    def form_key(self, path: str) -> str:
        """Return the idempotency key of the form for this path.

        A refused form keeps its key, because the refused request may have had an effect.
        """
        refused = self.errors and self.here == path
        return (self.typed(FORM_KEY) if refused else "") or random_id("frm_")

    def path(self, name: str) -> str:
        """Return a parameter of the path."""
        return str(self.request.path_params[name])

    def typed(self, name: str, default: str = "") -> str:
        """Return the text typed into a field."""
        return next((value for one, value in self.form if one == name), default)

    def number(self, name: str) -> int | str:
        """Return a field's text as a whole number, or unchanged if it is not one or has more than 15 digits."""
        text = self.typed(name)
        return int(text) if text.isascii() and text.isdecimal() and len(text) <= _MAX_DIGITS else text

    def chosen(self, name: str) -> list[str]:
        """Return the values of a field that may be given several times."""
        return [value for one, value in self.form if one == name]

    def body(self, model: type[Arguments], **values: Any) -> Arguments:
        """Return the form as a body of the API. ``values`` replace the form's fields of the same names.

        Raises InvalidFormError.
        """
        return validated(model, {name: self.typed(name) for name, _ in self.form if name != _CSRF} | values)

    def query(self, model: type[Arguments]) -> Arguments:
        """Return the query of the page's address as a query of the API. Raises InvalidFormError."""
        return validated(model, {name: value for name, value in self._asked().items() if name != _DONE})

    def understood(self, model: type[Arguments]) -> Arguments:
        """Return the query as ``query`` does, but replace an invalid one by an empty one and show a message."""
        try:
            return self.query(model)
        except InvalidFormError as error:
            self.errors = {"": error.message}
            return model()

    def listed(self, model: type[Arguments], **values: Any) -> Arguments:
        """Return the API's query of a list, starting at the cursor in the page's address. Raises InvalidFormError."""
        return validated(model, values | {"cursor": self._asked().get("cursor")})

    def _asked(self) -> Mapping[str, str]:
        """Return the address's query, or an empty one for an action: a wrong query must not hide the outcome."""
        return self.request.query_params if self.request.method == "GET" else {}

    def render(self, name: str, *, status: int = 200, **context: Any) -> Response:
        """Return a page rendered from its template."""
        signed_in = self.signed_in
        notice = NOTICES.get(self.request.query_params.get(_DONE, "")) if not self.errors else None
        shared = {"view": self, "base": self.site.base, "csrf": csrf_token(self.token), "me": signed_in}
        shared["cluster"] = self.service.identity.cluster
        text = template(name, **shared, notice=notice, root=self.site.party.prefix, **context)
        response = HTMLResponse(text, status, headers=HEADERS)
        if not self.known:
            self.site.set_cookie(response, self.token)
        return response


class PageRoute(Route):
    """The route of a page. ``shown`` renders the page, without any check of the visitor's role."""

    def __init__(self, path: str, endpoint: Endpoint, shown: Shown) -> None:
        super().__init__(ROOT + path, endpoint, methods=["GET"])
        self.shown = shown


def page(path: str, *, roles: Roles) -> Callable[[Shown], PageRoute]:
    """Turn a function that shows a page into its route. With ``roles=None`` the page is public."""

    def decorate(shown: Shown) -> PageRoute:
        @wraps(shown)
        async def endpoint(request: Request) -> Response:
            view = await _view(request)
            if (elsewhere := view.site.elsewhere(request)) is not None:
                return RedirectResponse(elsewhere, 307, headers=HEADERS)
            if roles is not None:
                if view.signed_in is None:
                    return view.site.to_sign_in(request)
                await _allow(view, roles, WEIGHT)
            return await shown(view)

        return PageRoute(path, endpoint, shown)

    return decorate


def action(
    path: str,
    *,
    roles: Roles,
    back: Back = None,
    step_up: bool = False,
    always: bool = False,
    brakes: bool = False,
    lifts: bool = False,
) -> Callable[[Done], Route]:
    """Turn a form's action into its route. See the module's docstring.

    On a public cluster, the admin key of an organisation without people may use the action only with ``brakes`` or
    ``always``.
    """

    def decorate(done: Done) -> Route:
        @wraps(done)
        async def endpoint(request: Request) -> Response:
            view = await _view(request)
            settings = view.service.settings
            view.form = await read_form(request, limit=settings.max_body_bytes, seconds=settings.request_timeout)
            view.site.check_source(request, view.typed(_CSRF))
            if roles is not None:
                if view.signed_in is None:
                    raise AuthenticationError("authentication_failed", "Your session has ended. Sign in again.")
                await _allow(view, roles, brake=brakes, lifts=lifts)
                if not always and not brakes and view.only_brakes:
                    raise AuthenticationError("insufficient_permissions", _NO_PERSON)
                if step_up and not view.stepped_up:
                    return await ask_first(view)
            if back is not None and view.typed(CHANGE):
                return await back.shown(view)
            try:
                result = await _carry_out(done, view)
            except ApiError as error:
                if error.code == "step_up_required" and view.signed_in is not None:
                    return await ask_first(view)
                if back is None or wants_json(request):
                    raise
                record(request, error, view.signed_in)
                view.errors = messages_of(error, view.form)
                request.state.error_code = error.code
                response = await back.shown(view)
                response.status_code = error.status
                return response
            if isinstance(result, Response):
                return result
            if wants_json(request):
                return JSONResponse({"location": result}, headers=HEADERS)
            return RedirectResponse(result, 303, headers=HEADERS)

        return Route(ROOT + path, endpoint, methods=["POST"])

    return decorate


async def _carry_out(done: Done, view: View) -> Response | str:
    """Carry out the action. If the authority's key is elsewhere, store the transaction for signing offline instead."""
    try:
        try:
            return await done(view)
        except UnavailableError as error:
            view.sign_offline = error.code == "authority_offline"  # raised before any effect, like an OutdatedError
            if not view.sign_offline and not isinstance(error, OutdatedError):
                raise
            await view.service.catch_up()
            return await done(view)
    except AwaitingSignatureError:
        place = ("signatures",) if view.principal.role in ADMINS else ()
        return view.url(*place, done="awaiting-signature")


async def _view(request: Request) -> View:
    site: Site = request.app.state.dashboard
    service: Service = request.app.state.service
    token, now = request.cookies.get(site.cookie), now_ms()
    if token is None:
        return View(request, site, service, new_token(), None, now, known=False)
    found, reached = await service.db.read(lambda conn: _recognised(conn, token, now, service.clock.now_ms()))
    return View(request, site, service, token, found, now, reached)


def _recognised(conn: Connection, token: str, now: int, chain_now: int) -> tuple[SignedIn | None, Progress]:
    found = recognise(conn, token, now)
    return found, Progress() if found is None else progress(conn, found.session.org, found.session.actor, chain_now)


async def _allow(view: View, roles: Collection[Role], weight: int = 1, **kind: bool) -> None:
    principal = view.request.state.principal = view.principal
    await count(view.request, principal, weight, **kind)
    try:
        authorise(principal, roles)
    except AuthenticationError:
        says = f"Your role does not allow this. Required: {' or '.join(sorted(roles))}."
        raise AuthenticationError("insufficient_permissions", says) from None


async def ask_first(view: View) -> Response:
    """Return the page that asks for a step-up. Afterwards, the browser sends the same form again or shows the page.

    Raises ``step_up_required`` for a request from a script.
    """
    if wants_json(view.request):
        raise AuthenticationError("step_up_required")
    view.request.state.error_code = "step_up_required"
    resumed = [(name, value) for name, value in view.form if name != _CSRF]
    by, issuer = view.principal.actor, view.service.part(CompanySignIn).issuer
    ways = await view.service.db.read(lambda conn: confirmations(conn, by.id, issuer))
    return view.render("step_up.html", status=403, path=view.here, resumed=resumed, ways=ways)
