"""The free tables under ``[plugins.options]``, one per plugin.

Called by `schema`. What stands in a table is for its plugin to check; here it only has to be a table.
"""

from __future__ import annotations

from collections.abc import Mapping

from config.kinds import Fault, JsonSchema, Kind, UnfitError


class PluginOptions(Kind[Mapping[str, Mapping[str, object]]]):
    """A table of tables."""

    __slots__ = ()

    def __init__(self) -> None:
        self.expected = "a table for each plugin, headed [plugins.options.NAME]"

    def _read(self, raw: object) -> Mapping[str, Mapping[str, object]]:
        if not isinstance(raw, Mapping):
            raise self.unfit(raw)
        faults = [
            Fault(path=(name,), found=options, rule=f"expected a table, headed [plugins.options.{name}]")
            for name, options in raw.items()
            if not isinstance(options, Mapping)
        ]
        if faults:
            raise UnfitError(faults)
        return {name: dict(options) for name, options in raw.items()}

    def _spell(self, value: Mapping[str, Mapping[str, object]]) -> object:
        return {name: dict(options) for name, options in value.items()}

    def _schema(self) -> JsonSchema:
        return {"type": "object", "additionalProperties": {"type": "object"}}
