"""The tables ``[quota.window]``, ``[controller.quota.window]``, ``[producer.id.quota]`` and ``[quota.state]``.

The first three are named after the broker's settings.
"""
# pydantic reads annotations at run time, so they are not postponed here.

from typing import Annotated, Final

from pydantic import Field

from headrace.config.keys import Key, Section
from headrace.quota_callbacks.buckets.sampled_rate import Window
from headrace.quota_callbacks.definitions import INT_MAX
from headrace.quota_callbacks.options import text, whole
from headrace.quota_callbacks.units import duration

_SAMPLES: Final = Key("Number of samples of a rate.", restart=True)


class SampleSize(Section):
    """The duration of a sample."""

    seconds: Annotated[int, whole(1, INT_MAX), Key("Duration of a sample in seconds.", restart=True)] = 1


class QuotaWindow(Section):
    """The window that a rate is measured over, with the names of the broker's settings."""

    num: Annotated[int, whole(1, INT_MAX), _SAMPLES] = 11
    size: SampleSize = Field(default_factory=SampleSize)

    @property
    def rate_window(self) -> Window:
        """The window in the form that rates are measured with."""
        return Window(samples=self.num, seconds=self.size.seconds)


class QuotaState(Section):
    """The file that keeps bucket states over a restart."""

    file: Annotated[
        str | None,
        text("the path of a file"),
        Key(
            "The file that rates, tokens and producer ids are saved to and restored from at start; without it a "
            "restart discards them. Each proxy needs its own file.",
            restart=True,
        ),
    ] = None
    interval_s: Annotated[
        float,
        duration("1s", "1h"),
        Key("Interval at which changes are saved; they are also saved when the proxy stops.", restart=True),
    ] = 5.0


class BrokerQuota(Section):
    """The window of byte rates and request time, and the file of bucket states."""

    window: Annotated[QuotaWindow, Key("The window of byte rates and request time.")] = Field(
        default_factory=QuotaWindow
    )
    state: QuotaState = Field(default_factory=QuotaState)


class ControllerQuota(Section):
    """The window of controller mutations."""

    window: Annotated[QuotaWindow, Key("The window of controller_mutation_rate, which determines its burst.")] = Field(
        default_factory=QuotaWindow
    )


class Controller(Section):
    """Settings that brokers have for the controller."""

    quota: ControllerQuota = Field(default_factory=ControllerQuota)


class ProducerIdSize(Section):
    """The window of producer ids."""

    seconds: Annotated[
        int,
        whole(1, INT_MAX),
        Key("Seconds for which a producer id is remembered, and the window of producer_ids_rate.", restart=True),
    ] = 3600


class ProducerIdWindow(Section):
    """The window of producer_ids_rate (KIP-936)."""

    num: Annotated[int, whole(1, INT_MAX), _SAMPLES] = 11
    size: ProducerIdSize = Field(default_factory=ProducerIdSize)


class ProducerIdQuota(Section):
    """The quota of new producer ids (KIP-936)."""

    window: ProducerIdWindow = Field(default_factory=ProducerIdWindow)


class ProducerId(Section):
    """Settings for producer ids."""

    quota: ProducerIdQuota = Field(default_factory=ProducerIdQuota)


class Producer(Section):
    """Settings that brokers have for producers."""

    id: ProducerId = Field(default_factory=ProducerId)
