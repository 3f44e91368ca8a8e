"""Webhooks never reach private networks, whatever their URLs and name servers say."""

import asyncio
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Any

import httpx
import pytest
from sqlalchemy import Connection, func, select

from app.core.errors import RequestError
from app.core.outbound import ForbiddenAddressError, HostResolver, Outbound
from app.store.delivery_attempts import table as attempts
from app.store.webhooks import change_webhook
from app.webhooks._sender import send
from app.webhooks.urls import UrlRules
from tests.support.webhooks import Post, Receiver, SilentNames

_connections: list[Any] | None = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "socket.connect" and _connections is not None:
        _connections.append(arguments[1])


sys.addaudithook(_audit)


@pytest.fixture
def connections() -> Iterator[list[Any]]:
    """The addresses that this process connects to or tries to."""
    global _connections  # noqa: PLW0603 - an audit hook is for the whole process
    _connections = []
    yield _connections
    _connections = None


@pytest.fixture
def silent_names(monkeypatch: pytest.MonkeyPatch) -> Iterator[SilentNames]:
    names = SilentNames(monkeypatch)
    yield names
    names.end()


#: The addresses of names; others do not exist.
_NAMES = {
    "loopback.example.com": ["127.0.0.1"],
    "loopback6.example.com": ["::1"],
    "ten.example.com": ["10.1.2.3"],
    "home.example.com": ["192.168.1.1"],
    "docker.example.com": ["172.17.0.1"],
    "metadata.example.com": ["169.254.169.254"],
    "carrier.example.com": ["100.64.0.1"],
    "local6.example.com": ["fe80::1%eth0"],
    "unique.example.com": ["fc00::1"],
    "unique2.example.com": ["fd12:3456::1"],
    "mapped.example.com": ["::ffff:10.0.0.1"],
    "nat64.example.com": ["64:ff9b::a00:1"],
    "sixtofour.example.com": ["2002:a00:1::"],
    "oracle.example.com": ["192.0.0.192"],
    "azure.example.com": ["168.63.129.16"],
    "azure6.example.com": ["64:ff9b::a83f:8110"],
    "alibaba.example.com": ["100.100.100.200"],
    "amazon.example.com": ["fd00:ec2::254"],
    "teredo.example.com": ["2001:0:102:304::f5ff:fffe"],
    "any.example.com": ["0.0.0.0"],
    "broadcast.example.com": ["255.255.255.255"],
    "multicast.example.com": ["224.0.0.1"],
    "mixed.example.com": ["1.1.1.1", "10.0.0.1"],
    "mixed6.example.com": ["2606:4700::1111", "::1"],
    "nothing.example.com": [],
    # Spellings that a resolver takes for 127.0.0.1
    "0x7f.0x1": ["127.0.0.1"],
    "127.0.0.0x1": ["127.0.0.1"],
}

_CORPUS = [
    *(f"https://{name}/" for name in _NAMES),
    "http://hooks.example.com/",
    "https://127.0.0.1/",
    "https://127.0.0.1:8402/v1/wallets",
    "https://127.1/",
    "https://2130706433/",
    "https://0x7f000001/",
    "https://0177.0.0.1/",
    "https://0/",
    "https://[::1]/",
    "https://[::]/",
    "https://[::ffff:127.0.0.1]/",
    "https://[::ffff:7f00:1]/",
    "https://[64:ff9b::7f00:1]/",
    "https://[64:ff9b:1::a00:1]/",
    "https://[2002:7f00:1::]/",
    "https://[fc00::1]/",
    "https://[fe80::1%25eth0]/",
    "https://10.0.0.1/",
    "https://169.254.169.254/latest/meta-data/",
    "https://100.64.0.1/",
    "https://192.168.0.1/",
    "https://172.16.0.1/",
    "https://198.18.0.1/",
    "https://192.0.2.1/",
    # Instance metadata and configuration at Oracle, Azure, Alibaba, Amazon and Google
    "https://192.0.0.192/",
    "https://168.63.129.16/",
    "https://[::ffff:168.63.129.16]/",
    "https://[::ffff:0:168.63.129.16]/",
    "https://[::168.63.129.16]/",
    "https://[64:ff9b::168.63.129.16]/",
    "https://[2002:a83f:8110::]/",
    "https://[2002:c000:c0::1]/",
    "https://100.100.100.200/",
    "https://[fd00:ec2::254]/",
    "https://[fd20:ce::254]/",
    # The first and last addresses of networks that are not public
    *(
        f"https://{address}/"
        for address in (
            *("192.0.0.0", "192.0.0.8", "192.0.0.9", "192.0.0.10", "192.0.0.170", "192.0.0.255"),
            *("192.88.99.0", "192.88.99.255", "100.64.0.0", "100.127.255.255", "240.0.0.0", "255.255.255.254"),
            *("169.254.0.0", "169.254.255.255", "172.31.255.255", "198.19.255.255", "0.255.255.255"),
            *("198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "127.255.255.254"),
        )
    ),
    # Teredo with a private and a public address, other parts of 2001::/23, documentation, translation, segment routing
    *(
        f"https://[{address}]/"
        for address in (
            *("2001:0:102:304::f5ff:fffe", "2001:0:102:304::fefe:fefe", "2001::", "2001:1::1", "2001:2::1"),
            *("2001:20::1", "2001:30::1", "2001:1ff:ffff:ffff:ffff:ffff:ffff:ffff", "2001:db8::1", "3fff::1"),
            *("64:ff9b:1::a9fe:a9fe", "100::1", "5f00::1", "fec0::1", "ff02::1", "ff0e::1", "4000::1", "e000::1"),
        )
    ),
    "https://localhost/",
    "https://localhost./",
    "https://app.localhost/",
    "https://LOCALHOST/",
    "https://printer/",
    "https://127.0.0.1./",
    "https://good.example.com@127.0.0.1/",
    "https://good.example.com:secret@127.0.0.1/",
    "https://127.0.0.1#@good.example.com/",
    "https://127.0.0.1\\@good.example.com/",
    "https://good.example.com\\@127.0.0.1/",
    "https:127.0.0.1/",
    "https:///127.0.0.1/",
    "//127.0.0.1/",
    "https://①②⑦.⓪.⓪.①/",
    "https://127。0。0。1/",
    "https://127.0.0.1%00.example.com/",
    "https://127.0.0.1\n.example.com/",
    "https://127.0.0.1 .example.com/",
    "https://good.example.com:0/",
    "https://good.example.com:65536/",
    "https://good.example.com:port/",
    "https://",
    "ftp://good.example.com/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:25/",
    "data:text/plain,hello",
    "unix:///var/run/docker.sock",
]


async def _lookup(domain: str, _port: int) -> Sequence[str]:
    if domain not in _NAMES:
        raise OSError("no such name")
    return _NAMES[domain]


def _is_accepted(rules: UrlRules, url: str) -> bool:
    try:
        rules.check(url)
    except RequestError:
        return False
    return True


@pytest.mark.proves("CreateWebhook(url)", "DeliveryAttempt(error)")
@pytest.mark.parametrize("url", _CORPUS)
async def test_url_that_leads_nowhere_public_makes_no_connection(url: str, connections: list[Any]) -> None:
    rules = UrlRules(local=False)
    outbound = Outbound(allowed=rules.allowed, lookup=_lookup)
    if _is_accepted(rules, url):
        # The addresses of a name count at the time of the delivery
        outcome = await send(outbound, url, b"{}", {}, within=1)
        assert outcome.error == "address_not_allowed"
    # Even past the check at registration there is no connection
    if url.startswith("https://"):
        outcome = await send(outbound, url, b"{}", {}, within=1)
        assert not outcome.delivered
    outbound.close()
    assert connections == []


@pytest.mark.parametrize(
    "url",
    [
        "https://hooks.example.com",
        "https://hooks.example.com:8443/path?query=1",
        "https://HOOKS.example.com/",
        "https://1.1.1.1/",
        "https://[2606:4700::1111]:444/",
        # Neighbours of networks that are not public
        *(
            f"https://{address}/"
            for address in (
                *("191.255.255.255", "192.0.1.0", "192.88.98.255", "192.88.100.0", "168.63.129.15", "168.63.129.17"),
                *("100.63.255.255", "100.128.0.0", "172.32.0.0", "[2001:200::1]", "[3ffe::1]", "[3fff:1000::1]"),
            )
        ),
        "https://xn--bcher-kva.example/",
    ],
)
def test_public_https_urls_are_accepted(url: str) -> None:
    UrlRules(local=False).check(url)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9000/", "http://localhost:9000/", "http://[::1]/", "https://a.example/"]
)
def test_localnet_also_accepts_this_machine_and_http(url: str) -> None:
    UrlRules(local=True).check(url)


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1/", "http://169.254.169.254/", "https://[fc00::1]/", "http://printer/"]
)
def test_localnet_accepts_no_other_private_address(url: str) -> None:
    with pytest.raises(RequestError):
        UrlRules(local=True).check(url)


@pytest.mark.parametrize(
    "url",
    [
        *("http://127.0.0.1:8402/", "http://localhost:8402/", "http://127.9.9.9:8402/", "http://[::1]:8899/"),
        *("https://vault.example.com/v1", "https://VAULT.example.com:443/", "https://vault.example.com./"),
    ],
)
def test_addresses_of_the_service_and_its_chain_are_refused(url: str) -> None:
    own = ("http://127.0.0.1:8402", "ws://localhost:8899", "https://vault.example.com")
    rules = UrlRules(local=True, own=own)

    with pytest.raises(RequestError, match="must not point to this service or its chain"):
        rules.check(url)
    for other in ("http://127.0.0.1:8403/", "https://vault.example.com:8443/", "https://hooks.example.com/"):
        rules.check(other)


async def test_dns_answer_that_changes_after_the_check_changes_nothing(connections: list[Any]) -> None:
    answers = iter([["127.0.0.1"], ["10.0.0.1"]])

    async def rebinding(_domain: str, _port: int) -> Sequence[str]:
        return next(answers)

    outbound = Outbound(allowed=lambda address: address == "127.0.0.1", lookup=rebinding)
    async with Receiver() as receiver:
        url = f"http://rebinding.example.com:{receiver.port}/hook"
        first = await send(outbound, url, b"{}", {})
        second = await send(outbound, url, b"{}", {})
    outbound.close()

    assert (first.status_code, second.error) == (200, "address_not_allowed")
    assert connections == [("127.0.0.1", receiver.port)]
    assert receiver.received[0].headers["host"] == f"rebinding.example.com:{receiver.port}"


async def test_refused_address_is_logged_and_tried_again_later(tmp_path: Path) -> None:
    post = Post(tmp_path, lookup=_lookup)
    made, _ = post.register("https://mixed.example.com/")
    [event_id] = post.happen()
    await post.drain()

    assert [(one.status_code, one.error) for one in post.log(made, event_id)] == [(None, "address_not_allowed")]
    assert post.statuses(made) == {event_id: "pending"}
    post.close()


async def test_silent_name_does_not_delay_other_deliveries(tmp_path: Path) -> None:
    async def silent(domain: str, _port: int) -> Sequence[str]:
        if domain == "silent.example.com":
            await asyncio.Event().wait()
        return ["127.0.0.1"]

    post = Post(tmp_path, timeout=2, lookup=silent)
    async with Receiver() as receiver:
        made, _ = post.register("https://silent.example.com/")
        post.register(f"http://hooks.example.com:{receiver.port}/")
        [event_id] = post.happen()
        await post.drain()
    assert len(receiver.received) == 1
    assert [one.error for one in post.log(made, event_id)] == ["timeout"]
    post.close()


async def test_no_lookup_is_made_for_an_address() -> None:
    asked = []

    async def noted(domain: str, _port: int) -> Sequence[str]:
        asked.append(domain)
        return ["1.1.1.1"]

    outbound = Outbound(lookup=noted)
    for url in ("https://10.0.0.1/", "https://[::1]/"):
        with pytest.raises(ForbiddenAddressError):
            async with outbound.request("GET", httpx.URL(url), headers={}):
                pass
    outbound.close()
    assert asked == []


async def test_silent_name_takes_one_thread_however_often_it_is_looked_up() -> None:
    asked, release = [], threading.Event()

    def silent(domain: str, _port: int) -> Sequence[str]:
        asked.append(domain)
        release.wait(20)
        return ["1.1.1.1"]

    names = HostResolver(limit=1, resolve=silent)
    try:
        for _ in range(3):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await names("silent.example.com", 443)
        waiting = asyncio.create_task(names("silent.example.com", 443))
        with pytest.raises(RequestError):
            await names("other.example.com", 443)
    finally:
        release.set()
    assert await waiting == ["1.1.1.1"]
    assert asked == ["silent.example.com"]
    names.close()


async def test_silent_names_of_one_organisation_leave_threads_to_others(
    tmp_path: Path, silent_names: SilentNames
) -> None:
    post = Post(tmp_path, timeout=0.2)
    async with Receiver() as receiver:
        loud = [post.register("https://silent.example.com/", org="loud")[0] for _ in range(10)]

        # Given rounds in which all are tried, each time under new names
        def rename(conn: Connection) -> None:
            for number, one in enumerate(loud):
                change_webhook(conn, one.webhook_id, url=f"https://{token_hex(4)}-{number}.silent.example.com/")

        for _ in range(2):
            post.db.write_now(rename)
            post.happen(org="loud")
            await post.drain()
        assert silent_names.parked == 2
        post.delivery_client._timeout = 60
        made, _ = post.register(f"http://1.here.example.com:{receiver.port}/", org="quiet")
        [event_id] = post.happen(org="quiet")
        await post.drain()

    assert post.statuses(made) == {event_id: "delivered"}
    assert [one.status_code for one in post.log(made, event_id)] == [200]
    post.close()


async def test_pings_to_silent_names_take_no_thread_from_deliveries(tmp_path: Path, silent_names: SilentNames) -> None:
    post = Post(tmp_path, timeout=0.05)
    refused = 0
    for number in range(30):
        made, _ = post.register(f"https://{number}.silent.example.com/", org=f"loud-{number % 10}", events=("ping",))
        try:
            await post.delivery_client.ping(made, post.delivery(made), "key_one")
        except RequestError:
            refused += 1
    # Given that pings have taken all their threads, each organisation no more than its share
    assert (silent_names.parked, refused) == (8, 22)
    post.delivery_client._timeout = 60
    async with Receiver() as receiver:
        made, _ = post.register(f"http://1.here.example.com:{receiver.port}/", org="loud-1")
        [event_id] = post.happen(org="loud-1")
        await post.drain()

    assert post.statuses(made) == {event_id: "delivered"}
    post.close()


async def test_delivery_whose_name_cannot_be_looked_up_counts_no_attempt(tmp_path: Path) -> None:
    async def busy(_domain: str, _port: int) -> Sequence[str]:
        raise RequestError("rate_limited")

    post = Post(tmp_path, lookup=busy)
    made, _ = post.register("https://hooks.example.com/")
    [event_id] = post.happen()
    await post.drain()

    assert post.statuses(made) == {event_id: "pending"}
    assert post.db.read_now(lambda conn: conn.scalar(select(func.count()).select_from(attempts))) == 0
    post.close()
