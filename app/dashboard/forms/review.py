"""What a person confirms before money moves: every amount before and after.

A form's first action checks what was typed and calls `ask`; the page that this shows sends the same fields, with an
idempotency key, to the action that calls `once` (`app/dashboard/forms/submit_once.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from starlette.responses import Response

from app.dashboard.forms.formatting import usdc
from app.dashboard.pages import FORM_KEY, View
from app.submission.database_guard import DatabaseGuard

#: Fields of the confirmation itself.
_OWN = ("csrf", FORM_KEY, "after_restore")


@dataclass(frozen=True, slots=True)
class BeforeAfter:
    """Something that changes, as it is shown before and after."""

    name: str
    before: str
    after: str

    @classmethod
    def of(cls, name: str, before: int, after: int) -> "BeforeAfter":
        """Return the change of an amount in micro-USDC."""
        return cls(name, usdc(before), usdc(after))


@dataclass(frozen=True, slots=True)
class Review:
    """What is asked: the page's title and text, what changes, the button, and the path of the form that it sends.

    `here` is the page's entry in the navigation. `moves` says whether money moves at once.
    """

    title: str
    text: str
    shifts: Sequence[BeforeAfter]
    button: str
    path: str
    here: str
    moves: bool = True


def ask(view: View, question: Review) -> Response:
    """Show what would change, with the form that carries it out and one that leads back to what was typed."""
    return view.render(
        "confirm.html",
        ask=question,
        typed=[(name, value) for name, value in view.form if name not in _OWN],
        back=view.here,
        restored=question.moves and _restored(view),
    )


def _restored(view: View) -> bool:
    """Whether a restore may have forgotten that this was carried out before."""
    return view.service.part(DatabaseGuard).state(view.principal.org) == "unacknowledged"
