"""How many vaults the pages of the fleet and of the funding name, and how they are counted."""

import pytest

from tests.dashboard.browsing import Crafted, sign_in, statements
from tests.support.service_world import ServiceWorld

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize(("path", "name"), [("/dashboard", "Seen"), ("/dashboard/funding", "Funded")])
async def test_page_without_a_filter_reads_no_vault_only_to_count(world: ServiceWorld, path: str, name: str) -> None:
    for number in range(3):
        await world.wallet(label=f"{name} {number}", funds=None)
    gone = await world.wallet(label=f"{name} once", funds=None)
    await world.ok("DELETE", f"/v1/wallets/{gone['wallet_id']}")
    living = len((await world.ok("GET", "/v1/wallets?limit=100"))["data"])
    viewer = Crafted(world, sign_in(world, "viewer"))
    for query, count in (("", living), (f"?q={name}", 3)):
        with statements() as found:
            text = (await viewer.client.get(f"{path}{query}")).text
        assert f"of {count}</span>" in text
        assert len([one for one in found if "OVER" in one]) == bool(query)


async def test_both_pages_say_the_same_of_a_reserve_that_lasts_long(own_world: ServiceWorld) -> None:
    viewer = Crafted(own_world, sign_in(own_world, "viewer"))
    for spends, says in ((False, "nothing spent in 7 days"), (True, "more than 10 years at the last 7 days' pace")):
        if spends:
            await own_world.pay(await own_world.wallet(), await own_world.payee(), "1.25")
        for path in ("/dashboard", "/dashboard/funding"):
            assert says in (await viewer.client.get(path)).text, path
