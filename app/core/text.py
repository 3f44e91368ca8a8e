"""Text that clients send: which characters it must not contain, and the form in which names are kept."""

import re
import unicodedata

#: Control characters except tab, line feed and carriage return, as a range that Python and ECMA regexes understand.
CONTROL = r"\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f"
#: What a name must not contain, because a reader does not see it: control characters and line ends, invisible and
#: zero-width characters, changes of the writing direction, and the tags and variation selectors in which text for
#: machines can be hidden. U+FE0F is allowed: it follows emoji, and nothing can be encoded in it alone. The last range
#: is literal, because Python and ECMA regexes have no notation for it in common.
HIDDEN = (
    r"\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u3164\ufe00-\ufe0e\ufeff\uffa0\ufff9-\ufffb" + "\U000e0000-\U000e0fff"
)
_HAS_CONTROL = re.compile(f"[{CONTROL}]")
_HAS_HIDDEN = re.compile(f"[{HIDDEN}]")


def has_control(text: str) -> bool:
    """Return whether a text contains control characters."""
    return _HAS_CONTROL.search(text) is not None


def has_hidden(text: str) -> bool:
    """Return whether a text contains characters that a reader does not see."""
    return _HAS_HIDDEN.search(text) is not None


def composed(text: str) -> str:
    """Return a text in NFC, in which what looks the same is the same more often."""
    return unicodedata.normalize("NFC", text)
