"""The results of a call for several topics or entities, of which some may have failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from headrace.proxy.kafka_client.errors import KafkaClientError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

K = TypeVar("K")
V = TypeVar("V")

_MOST_NOTES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Results(Generic[K, V]):
    """The results of the topics or entities of a call, in the order of the call: values or errors."""

    outcomes: Mapping[K, V | KafkaClientError]
    """The value, or the error, of each."""

    def __getitem__(self, key: K) -> V:
        """Return the value of one, or raise its error."""
        outcome = self.outcomes[key]
        if isinstance(outcome, KafkaClientError):
            raise outcome
        return outcome

    def __iter__(self) -> Iterator[K]:
        return iter(self.outcomes)

    def __len__(self) -> int:
        return len(self.outcomes)

    @property
    def values(self) -> dict[K, V]:
        """The values of those that did not fail."""
        return {key: each for key, each in self.outcomes.items() if not isinstance(each, KafkaClientError)}

    @property
    def errors(self) -> dict[K, KafkaClientError]:
        """The errors of those that failed."""
        return {key: each for key, each in self.outcomes.items() if isinstance(each, KafkaClientError)}

    def raise_errors(self) -> None:
        """Raise the first error, with a note for each of the others; do nothing if there is no error."""
        errors = self.errors
        if not errors:
            return
        (first, error), *others = errors.items()
        if hasattr(error, "__notes__"):
            raise error  # it has been raised before
        error.add_note(f"for {first}" + (f"; {len(errors)} of {len(self.outcomes)} failed" if others else ""))
        for key, other in others[:_MOST_NOTES]:
            error.add_note(f"for {key}: {other}")
        raise error
