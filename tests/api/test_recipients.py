"""Recipients: registrations of addresses and domains, and domains that publish their own address."""

import asyncio
import datetime as dt
import gzip
import ipaddress
import json
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from solders.keypair import Keypair
from solders.pubkey import Pubkey

from app.core.errors import RequestError
from app.core.outbound import HostResolver, is_public
from app.recipients.domains import DomainResolver, normalise
from tests.support.service_world import ServiceWorld, error_of
from tests.support.webhooks import SilentNames

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.proves(
    "PUT /v1/recipients/{recipient}",
    "GET /v1/recipients/{recipient}",
    "PutRecipient(category)",
    "RegisteredRecipient(recipient, category, effective_at)",
)
async def test_category_of_an_address_is_registered_and_read(world: ServiceWorld) -> None:
    address = str(Keypair().pubkey())

    put = await world.ok("PUT", f"/v1/recipients/{address}", {"category": "gambling"}, key=world.key("operator"))

    assert put == {
        "recipient": address,
        "address": address,
        "domain": None,
        "category": "gambling",
        "effective_at": put["effective_at"],
        "warnings": [],
    }
    assert await world.ok("GET", f"/v1/recipients/{address}") == put


@pytest.mark.proves("RegisteredRecipient(warnings)")
async def test_registered_vault_is_shown_with_a_warning(world: ServiceWorld) -> None:
    vault = (await world.wallet())["chain_address"]

    put = await world.ok("PUT", f"/v1/recipients/{vault}", {"category": "marketplace"})

    assert put["warnings"] == ["The address is a vault of this organisation: name its wallet instead."]
    assert await world.ok("GET", f"/v1/recipients/{vault}") == put


async def test_flipped_bit_does_not_spoil_anothers_registration(world: ServiceWorld) -> None:
    first, *others = bytes(Keypair().pubkey())
    spoiler, victim = (str(Pubkey.from_bytes(bytes([first ^ flip, *others]))) for flip in (0x80, 0))

    await world.ok("PUT", f"/v1/recipients/{spoiler}", {"category": "gambling"})
    put = await world.ok("PUT", f"/v1/recipients/{victim}", {"category": "marketplace"})

    assert (put["address"], put["category"]) == (victim, "marketplace")


@pytest.mark.proves(
    "PUT /v1/recipients/{recipient}", "PutRecipient(address)", "RegisteredRecipient(recipient, address, domain)"
)
async def test_domain_is_registered_with_its_address(world: ServiceWorld) -> None:
    address = str(Keypair().pubkey())

    put = await world.ok("PUT", "/v1/recipients/Store.Example.com", {"address": address, "category": "marketplace"})

    assert (put["recipient"], put["domain"], put["address"]) == ("store.example.com", "store.example.com", address)
    assert await world.ok("GET", "/v1/recipients/store.example.com") == put
    assert await world.ok("GET", f"/v1/recipients/{address}") == put


@pytest.mark.proves("PutRecipient(address)")
async def test_domain_needs_an_address(world: ServiceWorld) -> None:
    error_of(await world.call("PUT", "/v1/recipients/bare.example.com", {}), 400, "invalid_recipient")
    body = {"address": "nonsense"}
    error_of(await world.call("PUT", "/v1/recipients/bare.example.com", body), 400, "invalid_recipient")
    error_of(await world.call("PUT", "/v1/recipients/localhost", {}), 400, "invalid_recipient")


@pytest.mark.proves("PutRecipient(address)")
async def test_address_in_the_body_is_that_in_the_path(world: ServiceWorld) -> None:
    address, other = str(Keypair().pubkey()), str(Keypair().pubkey())

    for wrong in (other, "nonsense"):
        error_of(await world.call("PUT", f"/v1/recipients/{address}", {"address": wrong}), 400, "invalid_recipient")
    put = await world.ok("PUT", f"/v1/recipients/{address}", {"address": address, "category": "marketplace"})
    assert put["address"] == address


async def test_same_registration_again_changes_nothing(world: ServiceWorld) -> None:
    address, operator = str(Keypair().pubkey()), world.key("operator")
    first = await world.ok("PUT", f"/v1/recipients/{address}", {"category": "nft"}, key=operator)
    signatures = await world.signatures(address)

    assert await world.ok("PUT", f"/v1/recipients/{address}", {"category": "nft"}, key=operator) == first

    assert await world.signatures(address) == signatures


async def test_only_an_admin_changes_what_is_registered(world: ServiceWorld) -> None:
    address, operator = str(Keypair().pubkey()), world.key("operator")
    await world.ok("PUT", f"/v1/recipients/{address}", {"category": "weapons"}, key=operator)
    body = {"category": "marketplace"}

    refused = await world.call("PUT", f"/v1/recipients/{address}", body, key=operator)
    error_of(refused, 403, "insufficient_permissions")

    assert (await world.ok("PUT", f"/v1/recipients/{address}", body))["category"] == "marketplace"


@pytest.mark.proves("GET /v1/recipients", "GET /v1/recipients(limit, cursor)")
async def test_list_is_paged_last_changed_first(own_world: ServiceWorld) -> None:
    world, addresses = own_world, [str(Keypair().pubkey()) for _ in range(3)]
    for address in addresses:
        await world.ok("PUT", f"/v1/recipients/{address}", {"category": "nft"})
        await world.later(2)
    await world.ok("PUT", f"/v1/recipients/{addresses[0]}", {"category": "marketplace"})
    viewer = world.key("viewer")

    first = await world.ok("GET", "/v1/recipients?limit=2", key=viewer)
    rest = await world.ok("GET", f"/v1/recipients?limit=2&cursor={first['next_cursor']}", key=viewer)

    listed = [one["address"] for one in (*first["data"], *rest["data"])]
    assert listed == [addresses[0], addresses[2], addresses[1]]
    assert first["data"][0] == await world.ok("GET", f"/v1/recipients/{addresses[0]}")
    assert (first["has_more"], rest["has_more"], rest["next_cursor"]) == (True, False, None)
    wallet, other = await world.wallet(), await world.organisation("other")
    assert (await world.ok("GET", "/v1/recipients", key=world.key("viewer", org=other)))["data"] == []
    refused = await world.call("GET", "/v1/recipients", key=world.key("agent", wallet["wallet_id"]))
    error_of(refused, 403, "insufficient_permissions")
    error_of(await world.call("GET", "/v1/recipients?cursor=none", key=viewer), 400, "invalid_request")


@pytest.mark.proves("RegisteredRecipient(domain)")
async def test_domain_that_moves_is_taken_from_its_old_address(world: ServiceWorld) -> None:
    old, new = await world.payee(), await world.payee()
    await world.ok("PUT", "/v1/recipients/moving.example.com", {"address": old})
    policy = await world.policy(allowedRecipients=["moving.example.com"])
    wallet = await world.wallet(policy["policy_id"])
    refused = await world.call("PUT", "/v1/recipients/moving.example.com", {"address": new}, key=world.key("operator"))
    error_of(refused, 403, "insufficient_permissions")

    await world.ok("PUT", "/v1/recipients/moving.example.com", {"address": new})

    assert (await world.pay(wallet, "moving.example.com", "1")).json()["status"] == "confirmed"
    assert (await world.balance(old), await world.balance(new)) == (0, 1_000_000)
    error_of(await world.pay(wallet, old, "1"), 402, "policy_violation")
    assert (await world.ok("GET", f"/v1/recipients/{old}"))["domain"] is None


@pytest.mark.proves("error recipient_not_found")
async def test_organisations_register_for_themselves(world: ServiceWorld) -> None:
    neighbour = await world.organisation("recipient-neighbour")
    address = str(Keypair().pubkey())
    await world.ok("PUT", f"/v1/recipients/{address}", {"category": "mixer"})

    theirs = await world.call("GET", f"/v1/recipients/{address}", key=world.key("admin", org=neighbour))

    error_of(theirs, 404, "recipient_not_found")


# Domains that publish their own address


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "0.0.0.0",
        "224.0.0.1",
        "255.255.255.255",
        "192.0.2.1",
        "198.18.0.1",
        "::1",
        "::",
        "fe80::1",
        "fe80::1%eth0",
        "fc00::1",
        "ff02::1",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "2001:db8::1",
        "::127.0.0.1",
        "fec0::1",
        "64:ff9b:1::7f00:1",
        "::ffff:0:127.0.0.1",
        "192.88.99.1",
        "192.0.0.8",
    ],
)
async def test_private_addresses_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", ["1.1.1.1", "93.184.216.34", "2606:4700::1111", "::ffff:1.1.1.1"])
async def test_public_addresses_are_public(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    ("text", "domain"),
    [
        ("Example.COM", "example.com"),
        ("example.com.", "example.com"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("a.b-c.example.com", "a.b-c.example.com"),
        ("localhost", None),
        ("app.localhost", None),
        ("1.2.3.4", None),
        ("0x7f.0.0.1", None),
        ("example..com", None),
        ("example.com/x", None),
        ("x" * 64 + ".com", None),
        ("", None),
    ],
)
async def test_domains_are_normalised(text: str, domain: str | None) -> None:
    assert normalise(text) == domain


async def test_domain_of_a_private_address_is_never_asked() -> None:
    connected = False

    async def private(_domain: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connected
        connected = True
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    resolver = DomainResolver(timeout=2, lookup=private, port=port)
    async with server:
        with pytest.raises(RequestError) as caught:
            await resolver.resolve("inside.example.com")

    assert caught.value.code == "invalid_recipient"
    assert not connected


async def test_one_private_address_among_public_ones_spoils_the_domain() -> None:
    async def mixed(_domain: str, _port: int) -> list[str]:
        return ["1.1.1.1", "10.0.0.1"]

    with pytest.raises(RequestError):
        await DomainResolver(timeout=1, lookup=mixed).resolve("mixed.example.com")


_SHOPS = ("shop.example.com", "shop.here.example.com")


@asynccontextmanager
async def _site(
    folder: Path, answer: bytes, asked: list[bytes], *, looks_up: bool = False
) -> AsyncIterator[DomainResolver]:
    """A resolver that takes a local web server, with certificates for two shops, for a public one.

    It asks the name servers if `looks_up` is True.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(one) for one in _SHOPS]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    plain = serialization.NoEncryption()
    encoded = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    (folder / "certificate.pem").write_bytes(pem)
    (folder / "key.pem").write_bytes(encoded)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def lookup(_domain: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    def allowed(address: str) -> bool:
        return ipaddress.ip_address(address).is_loopback

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    async with server:
        yield DomainResolver(
            timeout=2,
            lookup=None if looks_up else lookup,
            allowed=allowed,
            tls=ssl.create_default_context(cadata=pem.decode()),
            port=server.sockets[0].getsockname()[1],
        )


def _http(body: bytes, status: str = "200 OK", extra: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{extra}Connection: close\r\n\r\n".encode() + body


@pytest.mark.proves("POST /v1/payments", "CreatePayment(to)")
@pytest.mark.parametrize(("encode", "extra"), [(bytes, ""), (gzip.compress, "Content-Encoding: gzip\r\n")])
async def test_domain_that_names_its_address_is_paid(
    world: ServiceWorld,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    encode: Callable[[bytes], bytes],
    extra: str,
) -> None:
    to, asked = await world.payee(), list[bytes]()
    wallet = await world.wallet()
    body = json.dumps({"solana": {"usdc": to}}).encode()
    answer = _http(encode(body), extra=extra)
    async with _site(tmp_path, answer, asked) as resolver:
        monkeypatch.setattr(world.service, "parts", {**world.service.parts, DomainResolver: resolver})
        paid = (await world.pay(wallet, "shop.example.com", "1")).json()

    assert (paid["status"], paid["recipient"]) == ("confirmed", "shop.example.com")
    assert await world.balance(to) == 1_000_000
    assert asked[0].startswith(b"GET /.well-known/agent-vault.json HTTP/1.1\r\nHost: shop.example.com:")
    # Asking a domain registers nothing: a policy's domain rule still refuses it.
    error_of(await world.call("GET", "/v1/recipients/shop.example.com"), 404, "recipient_not_found")


@pytest.mark.proves("error invalid_recipient")
@pytest.mark.parametrize(
    "answer",
    [
        _http(b"", "404 Not Found"),
        _http(b"", "302 Found", "Location: https://shop.example.com/other\r\n"),
        _http(b"nonsense"),
        _http(b"[]"),
        _http(b'{"solana": "x"}'),
        _http(b'{"solana": {"usdc": 5}}'),
        _http(b'{"solana": {"usdc": "nonsense"}}'),
        _http(b'{"solana": {"usdc": "127.0.0.1"}}'),
        _http(b'{"x": "' + b"y" * 20_000 + b'"}'),
        _http(gzip.compress(b'{"x": "' + b"y" * 20_000 + b'"}', mtime=0), extra="Content-Encoding: gzip\r\n"),
        _http(b"{}", extra="Content-Encoding: zstd\r\n"),
        b"not http at all",
    ],
)
async def test_domain_that_names_nothing_usable_is_no_recipient(
    world: ServiceWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    wallet, asked = await world.wallet(), list[bytes]()
    async with _site(tmp_path, answer, asked) as resolver:
        monkeypatch.setattr(world.service, "parts", {**world.service.parts, DomainResolver: resolver})
        error_of(await world.pay(wallet, "shop.example.com", "1"), 400, "invalid_recipient")

    assert len(asked) == 1


async def test_certificate_for_another_name_is_not_trusted(tmp_path: Path) -> None:
    asked = list[bytes]()
    async with _site(tmp_path, _http(b"{}"), asked) as resolver:
        with pytest.raises(RequestError):
            await resolver.resolve("other.example.com")

    assert asked == []


@pytest.mark.proves("Limits: Domains looked up at once", "error rate_limited")
async def test_silent_domains_of_one_wallet_leave_threads_to_another(
    world: ServiceWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = json.dumps({"solana": {"usdc": await world.payee()}}).encode()
    loud, quiet = await world.wallet(), await world.wallet()
    loud_key, quiet_key = (world.key("agent", one["wallet_id"]) for one in (loud, quiet))
    session, names = await world.session(quiet), SilentNames(monkeypatch)

    async def simulate(number: int) -> httpx.Response:
        payment = {"walletId": loud["wallet_id"], "to": f"{number}.silent.example.com", "amount": "1"}
        return await world.call("POST", "/v1/payments/simulate", payment, key=loud_key)

    async with _site(tmp_path, _http(body), [], looks_up=True) as resolver:
        monkeypatch.setattr(world.service, "parts", {**world.service.parts, DomainResolver: resolver})
        waiting = [asyncio.create_task(simulate(number)) for number in range(4)]
        try:
            await names.wait_for(4)
            refused = await simulate(4)
            paid = await world.pay(quiet, "shop.here.example.com", "1", session=session, key=quiet_key)
        finally:
            names.end()
        answers = await asyncio.gather(*waiting)
        resolver.close()

    error_of(refused, 429, "rate_limited")
    assert (refused.headers["Retry-After"], names.parked) == ("1", 4)
    assert (paid.json()["status"], paid.json()["recipient"]) == ("confirmed", "shop.here.example.com")
    for one in answers:
        error_of(one, 400, "invalid_recipient")


async def test_silent_name_servers_delay_only_lookups() -> None:
    answers = threading.Event()

    def silent(_domain: str, _port: int) -> list[str]:
        answers.wait(20)
        raise OSError("no answer")

    names = HostResolver(limit=40, resolve=silent)
    waiting = [
        asyncio.create_task(names(f"{number}.example.com", 443, (f"org-{number}", "key_one"))) for number in range(40)
    ]
    await asyncio.sleep(0)
    try:
        # Commits use the threads that the event loop shares.
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "committed"), 5) == "committed"
        with pytest.raises(RequestError) as caught:
            await names("one.more.example.com", 443, ("org-40", "key_one"))
        assert caught.value.code == "rate_limited"
    finally:
        answers.set()
    failed = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(one, OSError) for one in failed)
    await asyncio.sleep(0)
    with pytest.raises(OSError, match="no answer"):
        await names("later.example.com", 443)
    names.close()
