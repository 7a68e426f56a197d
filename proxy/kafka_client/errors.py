"""The errors of the client, as its users catch them.

    KafkaClientError
      SettingsError             the settings or the arguments are not usable; nothing was sent
      ClosedError               the client was closed, before the call or during it
      UnreachableError          no connection to a broker        (sent again until the deadline)
      ConnectionLostError       no reply to a request            (sent again until the deadline)
      TlsError                  the TLS handshake failed
      AuthenticationError       the broker refused the user, or its mechanism
      BadReplyError             the broker's bytes violate the protocol, or exceed a limit
      ApiTimeoutError           the deadline of the call has passed
      BrokerError               the broker answered with an error code
        InvalidRequestError       INVALID_REQUEST
        UnsupportedVersionError   UNSUPPORTED_VERSION, and an API that the broker does not have
        NotControllerError        NOT_CONTROLLER                 (sent again until the deadline)
        ThrottlingQuotaExceeded   THROTTLING_QUOTA_EXCEEDED (KIP-599)

A call is not sent again after any other error.
"""

from __future__ import annotations

from headrace.quota_callbacks.error_codes import ErrorCode


class KafkaClientError(Exception):
    """The base class of all errors of `headrace.proxy.kafka_client`."""


class SettingsError(KafkaClientError):
    """The settings or arguments are not usable. The message names the setting, its value and the rule."""


class ClosedError(KafkaClientError):
    """The client is closed, or was closed during the call; then the broker may have done what was requested."""


class UnreachableError(KafkaClientError):
    """No connection to a broker could be made. The message has the address and the reason."""


class ConnectionLostError(KafkaClientError):
    """The broker closed the connection, or did not reply in time; it may have done what was requested."""


class TlsError(KafkaClientError):
    """The TLS handshake with a broker failed, such as for a certificate that is not trusted."""


class AuthenticationError(KafkaClientError):
    """A broker refused the user, the password or the SASL mechanism, or could not prove that it knows the password."""


class BadReplyError(KafkaClientError):
    """A broker sent bytes that violate the protocol, or a reply above a limit of the settings."""


class ApiTimeoutError(KafkaClientError):
    """The deadline of a call has passed. The cause is the error of the last attempt, if one has failed."""


class BrokerError(KafkaClientError):
    """A broker answered with an error code.

    ``message`` is the broker's own message, or Kafka's text for the code if it sent none. ``explanation`` is what the
    client adds to it; ``str`` has both.
    """

    def __init__(self, code: int, message: str | None = None, *, explanation: str = "") -> None:
        self.code = code
        self.name = ErrorCode(code).name if code in _KNOWN else f"error code {code}"
        self.message = message or (
            ErrorCode(code).text if code in _KNOWN else "an error that this client does not know"
        )
        self.explanation = explanation
        super().__init__(f"{self.name}: {self.message}" + (f" ({explanation})" if explanation else ""))

    @property
    def retriable(self) -> bool:
        """Whether the same request may succeed later (``RetriableException`` in Java)."""
        return self.code in _KNOWN and ErrorCode(self.code).retriable


class InvalidRequestError(BrokerError):
    """INVALID_REQUEST: the broker knows the API, but refuses what the request contains."""

    def __init__(self, message: str | None = None, *, explanation: str = "") -> None:
        super().__init__(ErrorCode.INVALID_REQUEST, message, explanation=explanation)


class UnsupportedVersionError(BrokerError):
    """UNSUPPORTED_VERSION: the broker does not know the API, the version, or a feature that the request needs.

    Raised as well without asking, if the broker's ApiVersions say so; then nothing was sent.
    """

    def __init__(self, message: str | None = None, *, explanation: str = "") -> None:
        super().__init__(ErrorCode.UNSUPPORTED_VERSION, message, explanation=explanation)


class NotControllerError(BrokerError):
    """NOT_CONTROLLER: another broker is the controller now."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(ErrorCode.NOT_CONTROLLER, message)


class ThrottlingQuotaExceeded(BrokerError):  # noqa: N818 -- the name of Kafka's error, without "Exception"
    """THROTTLING_QUOTA_EXCEEDED: the quota ``controller_mutation_rate`` of this client is used up (KIP-599)."""

    def __init__(self, throttle_time_ms: int, message: str | None = None) -> None:
        super().__init__(ErrorCode.THROTTLING_QUOTA_EXCEEDED, message)
        self.throttle_time_ms = throttle_time_ms
        """How long to wait, in milliseconds, before the request can succeed."""

    def __str__(self) -> str:
        return f"{super().__str__()} Try again in {self.throttle_time_ms} ms."


_KNOWN = frozenset(ErrorCode)


def broker_error(code: int, message: str | None, *, throttle_time_ms: int = 0, explanation: str = "") -> BrokerError:
    """Return the error for a code other than `ErrorCode.NONE` in a reply."""
    match code:
        case ErrorCode.INVALID_REQUEST:
            return InvalidRequestError(message, explanation=explanation)
        case ErrorCode.UNSUPPORTED_VERSION:
            return UnsupportedVersionError(message, explanation=explanation)
        case ErrorCode.NOT_CONTROLLER:
            return NotControllerError(message)
        case ErrorCode.THROTTLING_QUOTA_EXCEEDED:
            return ThrottlingQuotaExceeded(throttle_time_ms, message)
    return BrokerError(code, message, explanation=explanation)
