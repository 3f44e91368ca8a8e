"""What was seen last is remembered, and no more than that."""

from app.core.recent import Recent


def test_oldest_are_forgotten_and_repeated_ones_are_new_again() -> None:
    recent: Recent[int] = Recent(2)
    recent.put("a", 1)
    recent.put("b", 2)
    recent.put("a", 3)
    recent.put("c", 4)
    assert recent.items() == [("a", 3), ("c", 4)]
    assert ("b" in recent, recent.get("b"), recent.get("a")) == (False, None, 3)
    recent.forget("a")
    recent.forget("never there")
    assert recent.items() == [("c", 4)]
