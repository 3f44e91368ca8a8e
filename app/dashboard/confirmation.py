"""What a person confirms before money moves: every amount before and after. It is carried out once, however often sent.

A form's first action checks what was typed and calls `ask`; the page that this shows sends the same fields, with an
idempotency key, to the action that calls `once`.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel
from starlette.responses import Response

from app.api.fields import Body
from app.api.repetition import admit_money, fingerprint
from app.core.errors import ConflictError
from app.core.identifiers import random_id
from app.dashboard.formatting import usdc
from app.dashboard.pages import View
from app.submission.idempotency import Claim, Idempotency
from app.submission.restoration import Restoration

Answered = TypeVar("Answered", bound=BaseModel)
#: Fields of the confirmation itself.
_OWN = ("csrf", "idempotency_key", "after_restore")


@dataclass(frozen=True, slots=True)
class Shift:
    """Something that changes, as it is shown before and after."""

    name: str
    before: str
    after: str

    @classmethod
    def of(cls, name: str, before: int, after: int) -> "Shift":
        """Return the change of an amount in micro-USDC."""
        return cls(name, usdc(before), usdc(after))


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked: the page's title and text, what changes, the button, and the path of the form that it sends.

    `here` is the page's entry in the navigation. `moves` says whether money moves at once.
    """

    title: str
    text: str
    shifts: Sequence[Shift]
    button: str
    path: str
    here: str
    moves: bool = True


def ask(view: View, question: Question) -> Response:
    """Show what would change, with the form that carries it out and one that leads back to what was typed."""
    return view.render(
        "confirm.html",
        ask=question,
        typed=[(name, value) for name, value in view.form if name not in _OWN],
        key=random_id("cnf_"),
        back=view.here,
        restored=question.moves and _restored(view),
    )


async def once(
    view: View, arguments: Body, answer: type[Answered], work: Callable[[Claim], Awaitable[Answered]]
) -> Answered:
    """Carry out what was confirmed, under the key of the page that asked; a repetition gets the first answer.

    Raises as ``Idempotency.run`` and ``admit_money``.
    """
    service, by, key = view.service, view.principal, view.typed("idempotency_key")

    async def run(claim: Claim) -> bytes:
        admit_money(service, claim, arguments)
        return (await work(claim)).model_dump_json().encode()

    # Apart from the keys of the API's clients.
    own = f"{by.key_id} {key}"
    identity = fingerprint(by, own, view.request.method, view.request.url.path, arguments) if key else None
    content, _ = await service.part(Idempotency).run(identity, run)
    return answer.model_validate_json(content)


def _restored(view: View) -> bool:
    """Whether a restore may have forgotten that this was carried out before."""
    try:
        view.service.part(Restoration).admit(acknowledged=False)
    except ConflictError:
        return True
    return False
