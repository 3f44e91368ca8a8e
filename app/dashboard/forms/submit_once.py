"""Forms that take effect once, even if sent repeatedly by a double click, a reload, or a retry after a failure.

Such a form has a hidden idempotency key (`forms.repeatable` in the templates), and its action calls `once`.
"""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from pydantic import BaseModel

from app.access.sealing import ResponseSeal
from app.api.fields import Body
from app.api.replay import fingerprint, prepare
from app.dashboard.pages import FORM_KEY, View
from app.people.sessions import digest
from app.submission.claim import Claim
from app.submission.idempotency import Idempotency

Answered = TypeVar("Answered", bound=BaseModel)


async def once(
    view: View,
    arguments: Body,
    answer: type[Answered],
    work: Callable[[Claim], Awaitable[Answered]],
    *,
    secret: bool = False,
) -> Answered:
    """Carry out a form's action under the form's idempotency key. After a success, a replay gets the stored response.

    A ``secret`` response is stored sealed under the browser's session token. The service keeps only the token's digest.
    Raises the errors of ``Idempotency.run`` and ``prepare``.
    """
    service, by, key = view.service, view.principal, view.typed(FORM_KEY)
    seal = ResponseSeal(view.token, digest(view.token)) if secret else None

    async def run(claim: Claim) -> bytes:
        claim.sign_offline = view.sign_offline
        prepare(service, claim, by, arguments)
        return (await work(claim)).model_dump_json().encode()

    identity = None
    if key:
        # Keep the form's key apart from the idempotency keys of API clients.
        own, owner = f"{by.key_id} {key}", None if seal is None else seal.owner
        identity = fingerprint(by, own, view.request.method, view.request.url.path, arguments, owner)
    content, _, _ = await service.part(Idempotency).run(identity, run, seal=seal)
    return answer.model_validate_json(content)
