"""Records refusals: a person's refused requests are written to the organisation's audit log, under the person's id."""

from starlette.requests import Request

from app.access.auth import client_address, client_host
from app.access.recorder import Recorder
from app.core.errors import ApiError
from app.people.sessions import SignedIn

_REFUSALS = frozenset({401, 403, 404})


def record(request: Request, error: ApiError, signed_in: SignedIn | None) -> None:
    """Record an error if it is a refusal. Without a session, only count it as a failed authentication."""
    if getattr(request.state, "recorded", False):
        return
    route = request.scope.get("route")
    # Requests from pages of other sites are refused before a route is known.
    path = "/dashboard" if route is None else route.path
    if error.status not in _REFUSALS or (route is None and error.code != "host_not_allowed"):
        return
    recorder: Recorder = request.app.state.recorder
    if signed_in is not None:
        by = signed_in.principal(client_address(request), request.state.request_id)
        recorder.refused(by, f"{request.method} {path}")
    elif error.status != 404:
        recorder.failed(client_host(request))
