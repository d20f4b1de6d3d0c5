"""The one error hierarchy: everything TokenFleet raises on purpose is a `TokenFleetError`."""


class TokenFleetError(Exception):
    """A failure with a message for the person who has to act on it."""


class ConfigurationError(TokenFleetError):
    """A setting is missing or wrong; the message names it and says what to do."""


class UnavailableError(TokenFleetError):
    """Something this process depends on (NATS, Postgres, an engine) cannot be reached."""


class ContractError(TokenFleetError):
    """A message does not decode as its contract."""


class PolicyError(TokenFleetError):
    """A policy value or tenant record fails validation."""


class RemoteError(TokenFleetError):
    """The other side of a request answered with an error envelope."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
