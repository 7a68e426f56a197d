"""The output of `--keep`: addresses, and commands to try. Pure."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from examples.demo.scenario import CLIENTS, LIMITED_CONSUMER, MISBEHAVING, command

if TYPE_CHECKING:
    from testbed.kafka.cluster import KafkaCluster
    from testbed.proxy_process import ProxyProcess


def addresses(cluster: KafkaCluster, proxy: ProxyProcess) -> str:
    """Return the addresses of the proxy and the brokers."""
    lines = [f"  {'bootstrap, through Headrace':30} {proxy.bootstrap_servers}"]
    for broker in cluster.brokers:
        through = f"127.0.0.1:{proxy.broker_port(broker.node_id)}"
        direct = f"{broker.host}:{broker.port}"
        lines.append(f"  {f'broker {broker.node_id}, through Headrace':30} {through}   (the broker itself: {direct})")
    lines.append(f"  {'admin server':30} http://{proxy.admin}")
    lines.append(f"  {'configuration':30} {proxy.config_file}   (edit it, then: kill -HUP {proxy.pid})")
    return "\n".join(lines)


def things_to_try(proxy: ProxyProcess) -> str:
    """Return commands to copy."""
    python = _shown(Path(sys.executable))
    headrace = _shown(Path(sys.executable).with_name("headrace"))
    limited = ", ".join(client.client_id for client in CLIENTS if client.limit is not None)
    console_producer = (
        f"kafka-console-producer.sh --bootstrap-server {proxy.bootstrap_servers} --topic {MISBEHAVING.topic.name}"
        " --command-property client.id=misbehaving"
    )
    curl = f'curl -s --header "Authorization: Bearer $(cat {proxy.token_file})" http://{proxy.admin}'
    reach = f"--admin {proxy.admin} --token-file {proxy.token_file}"
    commands = [
        ("the metrics of Headrace", f"{curl}/metrics | grep '^headrace_'"),
        ("whether quotas are enforced", f"{curl}/enforcement"),
        ("who is throttled, and why", f"{headrace} why {reach}"),
        ("stop enforcing quotas, at once", f"{headrace} enforcement off {reach}"),
        ("enforce them again", f"{headrace} enforcement on {reach}"),
        ("a producer with a limit", _by_hand(python, proxy, "misbehaving")),
        ("a producer without a limit", _by_hand(python, proxy, "somebody-else")),
        ("a consumer with a limit", _consumer(python, proxy)),
        ("with kcat, if you have it", f"kcat -b {proxy.bootstrap_servers} -L"),
        ("with Kafka's own tools, if you have them", console_producer),
    ]
    head = f"Client ids with a limit: {limited}. All others have none. In another terminal, in this directory, try:"
    return "\n".join([head, *(f"  # {what}\n  {line}" for what, line in commands)])


def _by_hand(python: str, proxy: ProxyProcess, client_id: str) -> str:
    return (
        f"{python} -m examples.demo.clients.librdkafka_producer --bootstrap-servers {proxy.bootstrap_servers}"
        f" --topic {MISBEHAVING.topic.name} --client-id {client_id}"
    )


def _consumer(python: str, proxy: ProxyProcess) -> str:
    module, *arguments = command(LIMITED_CONSUMER, proxy.bootstrap_servers)[2:]
    return " ".join([python, "-m", module, *arguments])


def _shown(path: Path) -> str:
    """Return a path relative to the working directory, if it is below it."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
