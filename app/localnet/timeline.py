"""Slots, block times and blockhashes of the embedded chain, all derived from one clock.

Nothing is stored per slot. Each slot is 400 ms of clock time since genesis, and its blockhash is a digest of the
genesis hash and the slot number. A blockhash served before a restart is therefore still known after the restart.
"""

from collections import deque
from collections.abc import Callable
from hashlib import sha256

from solders.hash import Hash

SLOT_MS = 400
"""Length of a slot in milliseconds, as on mainnet."""

MAX_BLOCKHASH_AGE = 150
"""Maximum age, in slots, of a blockhash that a transaction names. Solana's limit is also 150."""

FINALIZED_DEPTH = 32
"""Number of slots after which a confirmed transaction counts as finalized."""

SLOTS_PER_EPOCH = 432_000


class Timeline:
    """Turns a clock into slots that never go back.

    If the clock steps back, the chain's time stops until the clock has caught up. Slots and timestamps therefore never
    go back.
    """

    def __init__(self, clock: Callable[[], float], genesis_hash: Hash, genesis_time: int, last_time: float) -> None:
        """Start from the stored values.

        `clock` returns Unix seconds, `genesis_time` is the Unix second of slot 0, and `last_time` is the latest time
        stored by an earlier run.
        """
        self.clock = clock
        self._last_time = max(last_time, float(genesis_time))
        self._seed = bytes(genesis_hash)
        self.genesis_hash = genesis_hash
        self.genesis_time = genesis_time
        self._recent: deque[Hash] = deque(maxlen=MAX_BLOCKHASH_AGE + 1)
        self._slot_of: dict[Hash, int] = {}
        self._hashed_up_to = -1

    def now(self) -> float:
        """Return the chain's time in Unix seconds. It never decreases."""
        self._last_time = max(self._last_time, self.clock())
        return self._last_time

    def slot(self) -> int:
        """Return the current slot."""
        # Round to milliseconds, so that a clock advanced by exactly n * 0.4 s does not land just below slot n.
        return round((self.now() - self.genesis_time) * 1000) // SLOT_MS

    def block_time(self, slot: int) -> int:
        """Return the Unix second in which `slot` began."""
        return self.genesis_time + slot * SLOT_MS // 1000

    def seconds_to_next_slot(self) -> float:
        """Return the seconds until the next slot begins."""
        elapsed_ms = (self.now() - self.genesis_time) * 1000
        return (SLOT_MS - elapsed_ms % SLOT_MS) / 1000

    def blockhash(self, slot: int) -> Hash:
        """Return the blockhash of `slot`."""
        return Hash(sha256(self._seed + slot.to_bytes(8, "little")).digest())

    def slot_of_blockhash(self, blockhash: Hash, current: int) -> int | None:
        """Return the slot of a blockhash, or None if it is not valid in slot `current`."""
        self._catch_up(current)
        slot = self._slot_of.get(blockhash)
        return slot if slot is not None and slot >= current - MAX_BLOCKHASH_AGE else None

    def recent(self, current: int) -> list[tuple[int, Hash]]:
        """Return up to 150 slots before `current` with their blockhashes, newest first."""
        self._catch_up(current)
        newest = self._hashed_up_to
        hashes = [(newest - age, blockhash) for age, blockhash in enumerate(reversed(self._recent))]
        return [one for one in hashes if one[0] < current]

    def _catch_up(self, current: int) -> None:
        for slot in range(max(self._hashed_up_to + 1, current - MAX_BLOCKHASH_AGE), current + 1):
            if len(self._recent) == self._recent.maxlen:
                del self._slot_of[self._recent[0]]
            fresh = self.blockhash(slot)
            self._recent.append(fresh)
            self._slot_of[fresh] = slot
            self._hashed_up_to = slot
