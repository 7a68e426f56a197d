"""Real clients connect to a real broker by TLS and SASL, without a proxy: the reference for connections through one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from testbed.kafka.tools import Tool, run_tool
from tests.clients.fronts import DEADLINE_S, TOOL_DEADLINE_S
from tests.clients.tls.cases import CASES, PLAIN
from tests.clients.tls.connecting import CLIENTS, Outcome, connect_with
from tests.clients.users.sasl_clients import java_settings
from tests.secure_cluster import Port

if TYPE_CHECKING:
    from pathlib import Path

    from tests.secure_cluster import SecureKafka


@pytest.mark.exhaustive
@pytest.mark.parametrize("client", [*CLIENTS])
def test_a_client_is_served_or_refused(secure_kafka: SecureKafka, client: str) -> None:
    found = [
        case.problem(
            client,
            connect_with(
                client, secure_kafka.address(case.port), case.security(secure_kafka), timeout_s=case.timeout_s
            ),
        )
        for case in CASES
    ]
    problems = [problem for problem in found if problem]
    assert not problems, "\n".join(problems)


@pytest.mark.exhaustive
def test_javas_tools_read_pkcs12_files(secure_kafka: SecureKafka, tmp_path: Path) -> None:
    login = java_settings(PLAIN.mechanism, PLAIN.user, PLAIN.password)
    settings = {
        **{name.replace("_", "."): value for name, value in login.items()},
        "security.protocol": "SASL_SSL",
        "request.timeout.ms": str(int(DEADLINE_S * 1000)),  # the tool's own default is five seconds
        **secure_kafka.mutual_tls.java_properties(pkcs12=True),
    }
    file = tmp_path / "client.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="ascii")
    address = secure_kafka.address(Port.SASL_MUTUAL_TLS)
    arguments = ["--bootstrap-server", address, "--command-config", str(file)]
    printed = run_tool(Tool.BROKER_API_VERSIONS, arguments, timeout_s=TOOL_DEADLINE_S).stdout
    assert f"{address} (id: 0" in printed


def test_outcomes_differ_by_their_errors_alone() -> None:
    assert Outcome("_SSL", "one text") == Outcome("_SSL", "another")
    assert Outcome("_SSL") != Outcome(None)
    assert CASES[0].problem("java", Outcome("_SSL")) is not None
    assert CASES[-1].problem("java", Outcome(None)) is not None
