"""``describeClientQuotas`` and ``alterClientQuotas`` of Java's Admin, with plain values."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

from testbed.kafka.jvm import start_jvm
from tests.clients.java_clients import CLIENTS, COMMON, JavaClients, done

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

QUOTA: Final = f"{COMMON}.quota"

Names = dict[str, str | None]
Alteration = tuple[Names, dict[str, float | None]]


class JavaQuotas:
    """The calls for quotas of one Admin client, with plain values."""

    def __init__(self, java: JavaClients, admin: Any) -> None:
        self._java = java
        self._admin = admin

    def alter(self, alterations: Sequence[Alteration], *, validate_only: bool = False) -> list[str]:
        """Alter, and return what each entity's future comes to, in no particular order."""
        alteration, operation = (self._java.cls(f"{QUOTA}.ClientQuotaAlteration{each}") for each in ("", "$Op"))
        double = start_jvm().java.lang.Double
        entries = [
            alteration(
                self._entity(names),
                [operation(key, None if value is None else double(value)) for key, value in values.items()],
            )
            for names, values in alterations
        ]
        options = self._java.cls(f"{CLIENTS}.admin.AlterClientQuotasOptions")().validateOnly(validate_only)
        results = self._admin.alterClientQuotas(entries, options).values()
        return sorted(f"{each.getKey()}: {outcome(each.getValue())}" for each in results.entrySet())

    def describe(self, components: Sequence[Any], *, strict: bool = False) -> str | dict[str, str]:
        """Describe, and return the values by entity, or the error."""
        kind = self._java.cls(f"{QUOTA}.ClientQuotaFilter")
        wanted = kind.containsOnly([*components]) if strict else kind.contains([*components])
        future = self._admin.describeClientQuotas(wanted).entities()
        if (error := outcome(future)) != "done":
            return error
        found = start_jvm().java.util.TreeMap
        return {str(each.getKey()): str(found(each.getValue())) for each in done(future).entrySet()}

    def component(self, entity_type: str, match: str | None) -> Any:
        """A component: an exact name, ``<default>``, or ``<any>``."""
        kind = self._java.cls(f"{QUOTA}.ClientQuotaFilterComponent")
        if match == "<default>":
            return kind.ofDefaultEntity(entity_type)
        return kind.ofEntityType(entity_type) if match == "<any>" else kind.ofEntity(entity_type, match)

    def _entity(self, names: Mapping[str, str | None]) -> Any:
        entries = start_jvm().java.util.HashMap()
        for entity_type, name in names.items():
            entries.put(entity_type, name)
        return self._java.cls(f"{QUOTA}.ClientQuotaEntity")(entries)


def outcome(future: Any) -> str:
    """What a future comes to: "done", or the error's class and message."""
    try:
        done(future)
    except start_jvm().java.util.concurrent.ExecutionException as error:
        cause = error.getCause()
        return f"{cause.getClass().getName()}: {cause.getMessage()}"
    return "done"


@contextlib.contextmanager
def java_quotas(server: str, version: str = "4.4.0", **settings: Any) -> Iterator[JavaQuotas]:
    """An Admin client of its own."""
    java = JavaClients(version, server)
    with java.admin(**settings) as admin:
        yield JavaQuotas(java, admin)
