"""What a payment costs the database on PostgreSQL: statements and commits, counted where the driver sends them."""

import asyncio
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from app.database.postgres._statements import Sender
from tests.support.postgres import Cluster
from tests.support.service_world import ServiceWorld

_PAYMENTS, _WALLETS = 80, 16
_MOST_ALONE, _MOST_TOGETHER = {False: 22, True: 26}, 14
"""Statements of a payment that is the only one, with an idempotency key or without, and of each of many with keys.

Two of them keep the payment's labels and add it to the sums of spending.
"""
_MOST_COMMITS = {False: 2, True: 3}
"""Commits of a payment alone: the attempt, the event with the read models, and the answer under the idempotency key."""

_TRIES, _ROUNDS = 25, 5
_FRAME = ("BEGIN", "COMMIT", "ROLLBACK")


class Counted:
    """How many statements and commits there were."""

    statements = 0
    commits = 0

    def reset(self) -> None:
        self.statements = self.commits = 0


@contextmanager
def _counted() -> Iterator[Counted]:
    """Count what is sent meanwhile, also past SQLAlchemy and past psycopg's cursors."""
    found = Counted()
    sent, sent_all = Sender.run, Sender.run_all
    once, many = psycopg.Cursor.execute, psycopg.Cursor.executemany

    def run(sender: Sender, *given: Any) -> Any:
        found.statements += 1
        return sent(sender, *given)

    def execute(cursor: Any, *given: Any, **options: Any) -> Any:
        found.statements += 1
        return once(cursor, *given, **options)

    def executemany(cursor: Any, query: Any, params_seq: Any, **options: Any) -> None:
        rows = list(params_seq)
        found.statements += len(rows)  # the server runs it for each
        many(cursor, query, rows, **options)

    def run_all(sender: Sender, script: str) -> Any:
        words = [one.split()[0] for one in script.split("; ")]
        found.statements += sum(one not in _FRAME for one in words)
        found.commits += "COMMIT" in words
        return sent_all(sender, script)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Sender, "run", run)
        patch.setattr(Sender, "run_all", run_all)
        patch.setattr(psycopg.Cursor, "execute", execute)
        patch.setattr(psycopg.Cursor, "executemany", executemany)
        yield found


def _is_cheap(alone: Sequence[tuple[int, int]], *, keyed: bool) -> bool:
    """Return whether one payment kept each limit."""
    statements, commits = min(one for one, _ in alone), min(one for _, one in alone)
    return statements <= _MOST_ALONE[keyed] and commits <= _MOST_COMMITS[keyed]


def _is_shared(rounds: Sequence[tuple[float, float]]) -> bool:
    """Return whether one round kept both limits."""
    return any(statements <= _MOST_TOGETHER and commits <= 0.5 for statements, commits in rounds)


async def test_payment_takes_few_statements_and_commits(cluster: Cluster, template: str, tmp_path: Path) -> None:
    url = SecretStr(cluster.url(cluster.database(template)))
    with _counted() as found:
        async with ServiceWorld(tmp_path, database_url=url, webhooks=False, exports=False) as world:
            wallets = [await world.wallet(funds="10") for _ in range(_WALLETS)]
            payee = await world.payee()

            async def pay(wallet: dict[str, Any], *, keyed: bool = True) -> str:
                headers = {"Idempotency-Key": secrets.token_hex(8)} if keyed else {}
                return str((await world.pay(wallet, payee, "0.01", headers=headers)).json()["status"])

            for _ in range(3):
                await pay(wallets[0])

            # Alone: the best of several, because the service's own work counts too, and there is more of it under load.
            for keyed in (False, True):
                alone: list[tuple[int, int]] = []
                while not alone or (len(alone) < _TRIES and not _is_cheap(alone, keyed=keyed)):
                    found.reset()
                    assert await pay(wallets[0], keyed=keyed) == "confirmed"
                    alone.append((found.statements, found.commits))
                assert _is_cheap(alone, keyed=keyed), alone

            # Together: the best of several rounds, because it depends on the load how many payments share a commit.
            rounds: list[tuple[float, float]] = []
            while not rounds or (len(rounds) < _ROUNDS and not _is_shared(rounds)):
                found.reset()
                answers = await asyncio.gather(*(pay(one) for one in wallets for _ in range(_PAYMENTS // _WALLETS)))
                assert answers == ["confirmed"] * _PAYMENTS
                rounds.append((found.statements / _PAYMENTS, found.commits / _PAYMENTS))
            assert _is_shared(rounds), rounds
