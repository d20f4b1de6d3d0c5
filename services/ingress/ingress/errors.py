"""Errors as OpenAI's API answers them: `{"error": {"message", "type", "param", "code"}}` and a status."""

import math

import msgspec

from tokenfleet.errors import TokenFleetError

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    408: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class ApiError(TokenFleetError):
    """A request that is answered with an error before or instead of reaching an engine."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """`Retry-After` in whole seconds (RFC 9110), at least one, when there is one."""
        if self.retry_after_s is None:
            return {}
        return {"Retry-After": str(max(1, math.ceil(self.retry_after_s)))}

    def body(self) -> bytes:
        """The JSON body of the answer."""
        error = {
            "message": self.message,
            "type": _TYPES.get(self.status, "server_error"),
            "param": self.param,
            "code": self.code,
        }
        return msgspec.json.encode({"error": error})

    def sse_event(self) -> bytes:
        """The same inside a stream that has already begun."""
        return b"data: " + self.body() + b"\n\n"
