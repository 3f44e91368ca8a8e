"""The review that a person confirms before money moves or a rule changes: each value before and after.

A form's first action checks the typed values and calls `ask`. The page shown by `ask` sends the same fields, with an
idempotency key, to an action that usually calls `once` (`app/dashboard/forms/submit_once.py`).
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
    """A changed value, as text for before and after."""

    name: str
    before: str
    after: str

    @classmethod
    def of(cls, name: str, before: int, after: int) -> "BeforeAfter":
        """Return the change to an amount; ``before`` and ``after`` are in micro-USDC."""
        return cls(name, usdc(before), usdc(after))


@dataclass(frozen=True, slots=True)
class Review:
    """A question to a person: the page's title and text, the changes, the button, and the path of its form's action.

    `here` is the page's entry in the navigation. `moves` is True if money moves immediately.
    """

    title: str
    text: str
    shifts: Sequence[BeforeAfter]
    button: str
    path: str
    here: str
    moves: bool = True


def ask(view: View, question: Review) -> Response:
    """Show the review. One button carries out the changes. The other leads back to the filled form."""
    return view.render(
        "confirm.html",
        ask=question,
        typed=[(name, value) for name, value in view.form if name not in _OWN],
        back=view.here,
        restored=question.moves and view.service.part(DatabaseGuard).state(view.principal.org) == "unacknowledged",
    )
