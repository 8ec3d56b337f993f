"""The address of a gRPC server, in commands and in errors."""

import re
import socket

import click

ADDRESS = re.compile(r"(?P<host>[\w.-]+|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})", re.ASCII)


def checked_address(text: str) -> str:
    """Check HOST:PORT, IPv6 in brackets, as the type of an option. Whether HOST has an address is found out only when
    it is used."""
    found = ADDRESS.fullmatch(text)
    if found is None or not 1 <= int(found["port"]) <= 65535:
        raise click.BadParameter(f"{text!r} is no HOST:PORT with a port from 1 to 65535, such as 127.0.0.1:50052")
    return text


def unknown_host(address: str) -> str:
    """Return why the host has no address; empty if it has one."""
    host, _, port = address.rpartition(":")
    try:
        socket.getaddrinfo(host.strip("[]"), port)
    except socket.gaierror as error:
        return f"{host}: {error.strerror}"
    return ""
