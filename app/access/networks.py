"""Networks of client addresses, in CIDR notation."""

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

Network = IPv4Network | IPv6Network

_MAPPED = IPv6Network("::ffff:0:0/96")
_IPV4 = 0xFFFFFFFF


def parse_network(text: str) -> Network:
    """Return the network in a text such as `203.0.113.0/24`. A network of mapped addresses becomes its IPv4 network.

    Raises ValueError for any other text, for an address with a zone, and for bits outside the network's prefix.
    """
    if "%" in text:
        raise ValueError("an address with a zone is not a network")
    found = ip_network(text)
    if isinstance(found, IPv6Network) and found.subnet_of(_MAPPED):
        return IPv4Network((int(found.network_address) & _IPV4, found.prefixlen - _MAPPED.prefixlen))
    return found


def contain(networks: Iterable[Network], address: str | None) -> bool:
    """Return True if a network contains the address. An unknown address is outside."""
    if address is None:
        return False
    found = ip_address(address)
    return any(found in one for one in networks)
