"""Results made up by hand."""

from __future__ import annotations

from benchmarks.bench.figures import Results, Sample


def sample(work: str, path: str, number: int, **values: float) -> Sample:
    return Sample(work=work, path=path, round=number, values=values)


def rounds(work: str, path: str, figure: str, *values: float) -> list[Sample]:
    """One sample a round."""
    return [sample(work, path, number, **{figure: value}) for number, value in enumerate(values, 1)]


def results(*samples: list[Sample]) -> Results:
    return Results([each for some in samples for each in some])
