"""Addresses that e-mails are sent to and from."""

from email_validator import EmailNotValidError, validate_email

#: How RFC 2047 begins text in another encoding: in a header the address would become another one, or none.
_ENCODED_WORD = "=?"


def parse_address(text: str) -> str:
    """Return an address as it stands in a message: ASCII, its domain encoded. Raises ValueError for what is none."""
    if _ENCODED_WORD in text:
        raise ValueError("not an e-mail address")
    try:
        found = validate_email(text, check_deliverability=False, allow_smtputf8=False, strict=True)
    except EmailNotValidError:
        raise ValueError("not an e-mail address") from None
    assert found.ascii_email is not None
    return found.ascii_email
