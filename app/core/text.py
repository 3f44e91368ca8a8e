"""Text that clients send: which characters it must not contain, and the form in which names are kept."""

import re
import unicodedata

#: Control characters except tab, line feed and carriage return, as a range that Python and ECMA regexes understand.
CONTROL = r"\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f"
#: What a name must not contain, because a reader does not see it: control characters and line ends, invisible and
#: zero-width characters, changes of the writing direction, the tags and variation selectors in which text for machines
#: can be hidden, and private characters, which have no form of their own. U+FE0F is taken, because keyboards put it
#: behind emoji, but not kept. The last ranges are literal, because Python and ECMA regexes have no notation for them in
#: common.
HIDDEN = (
    r"\u0000-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    r"\u2060-\u206f\u2800\u3164\ufe00-\ufe0e\ufeff\uffa0\ue000-\uf8ff\ufdd0-\ufdef\ufff0-\ufffc\ufffe\uffff"
    "\U00013430-\U0001345f\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a\U000e0000-\U000e0fff"
)
#: The selector of an emoji's coloured form.
EMOJI_FORM = "\ufe0f"
_BLANKS = re.compile(r"[\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_HAS_CONTROL = re.compile(f"[{CONTROL}]")
_HAS_HIDDEN = re.compile(f"[{HIDDEN}]")


def has_control(text: str) -> bool:
    """Return whether a text contains control characters."""
    return _HAS_CONTROL.search(text) is not None


def has_hidden(text: str) -> bool:
    """Return whether a text contains characters that a reader does not see."""
    return _HAS_HIDDEN.search(text) is not None


def composed(text: str) -> str:
    """Return a text in which what looks the same is the same more often: in NFC, one kind of blank, no selectors."""
    return unicodedata.normalize("NFC", _BLANKS.sub(" ", text.replace(EMOJI_FORM, "")))


def plain(line: str) -> str:
    """Return a line in printable ASCII: no text of others controls a terminal, or looks like another."""
    return "".join(one if one.isascii() and one.isprintable() else ascii(one)[1:-1] for one in line)
