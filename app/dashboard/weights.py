"""The cost of pages for the rate limit."""

from starlette.requests import Request

from app.access.auth import spend
from app.access.keyring import Principal

WEIGHT = 8
"""The cost of a page."""
_SUMMED = 500
"""Number of summed transactions that raise the cost by 1."""


def charge(request: Request, principal: Principal, summed: int) -> None:
    """Count the transactions that a page has summed, after the summing, because their number was unknown before."""
    spend(request, principal, summed // _SUMMED)
