"""Networks of client addresses, in CIDR notation."""

from collections.abc import Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network

_MAPPED = IPv6Network("::ffff:0:0/96")
_IPV4 = 0xFFFFFFFF


@lru_cache(maxsize=10_000)
def parse_network(text: str) -> Network:
    """Return the network in a text such as `203.0.113.0/24`. Networks of mapped IPv4 addresses become IPv4 networks.

    Raises ValueError for any other text, for an address with a zone, and for nonzero bits after the network's prefix.
    """
    if "%" in text:
        raise ValueError("an address with a zone is not a network")
    found = ip_network(text)
    if isinstance(found, IPv6Network) and found.subnet_of(_MAPPED):
        return IPv4Network((int(found.network_address) & _IPV4, found.prefixlen - _MAPPED.prefixlen))
    return found


def is_narrow(network: str) -> bool:
    """Return True unless the network is wider than /8 for IPv4 or /32 for IPv6."""
    found = parse_network(network)
    return found.prefixlen >= found.max_prefixlen // 4


def allow(networks: Sequence[str] | None, address: str | None) -> bool:
    """Return True if one of the networks contains the address, or if ``networks`` is None, which allows any address.

    An unknown address, None, is in no network.
    """
    if networks is None or address is None:
        return networks is None
    found = ip_address(address)
    return any(found in parse_network(one) for one in networks)
