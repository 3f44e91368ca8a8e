"""Forks of the embedded chain, which has no forks of its own."""

from typing import Self

from solders.account import Account
from solders.pubkey import Pubkey

from app.localnet import Localnet


class Fork:
    """A saved state of a chain. Going back to it makes later transactions look as if they were on a losing fork."""

    def __init__(self, localnet: Localnet) -> None:
        self._chain = localnet.chain
        self._accounts = self._all()
        self._count = self._chain.transaction_count

    @classmethod
    async def here(cls, localnet: Localnet) -> Self:
        """Save the chain's current state."""
        await localnet.chain.flush()
        return cls(localnet)

    async def drop(self) -> None:
        """Go back to the saved state, which drops all later transactions. The same transactions may land again."""
        chain = self._chain
        await chain.flush()
        now = self._all()
        changed = [one for one in now.keys() | self._accounts.keys() if now.get(one) != self._accounts.get(one)]
        restored = [(address, self._accounts.get(address)) for address in changed]
        for address, account in restored:
            chain.bank.put(address, account)
        chain.storage.stage({}, restored)
        for table in ("transactions", "address_history"):
            chain.storage._writer.execute(f"DELETE FROM {table} WHERE seq > ?", (self._count,))
        chain.storage.commit()
        chain.transaction_count = self._count
        chain._processed.clear()

    def _all(self) -> dict[Pubkey, Account]:
        return dict(self._chain.storage._accounts(""))
