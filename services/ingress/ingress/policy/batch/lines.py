"""Lines of batch files: what a request line must be, and how its result is written."""

from collections.abc import Callable
from typing import Any

import msgspec

from ingress import validation
from ingress.errors import ApiError
from ingress.validation import Operation

ENDPOINTS: dict[str, Operation] = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
MAX_CUSTOM_ID_CHARS = 256
MAX_ERRORS = 100
"""More of them help nobody to mend a file."""

_CONTROL = frozenset(map(chr, range(32)))

Servable = Callable[[str], bool]
"""Whether the tenant may have requests for a model answered."""


class InputLine(msgspec.Struct, frozen=True):
    """One request of a batch, its body as the client wrote it."""

    custom_id: str
    method: str
    url: str
    body: msgspec.Raw


class LineError(msgspec.Struct, frozen=True):
    """Why a batch cannot be run: one entry of its `errors.data`."""

    code: str
    message: str
    line: int | None = None
    param: str | None = None


class Response(msgspec.Struct, frozen=True):
    status_code: int
    request_id: str
    body: msgspec.Raw


class Problem(msgspec.Struct, frozen=True):
    code: str
    message: str


class OutputLine(msgspec.Struct, frozen=True):
    """The result of one line, in the output or the error file."""

    id: str
    custom_id: str
    response: Response | None
    error: Problem | None


EXPIRED = Problem("batch_expired", "This request could not be executed before the completion window expired.")
CANCELLED = Problem("batch_cancelled", "The batch was cancelled before this request was executed.")

_INPUT = msgspec.json.Decoder(InputLine)
_ENCODER = msgspec.json.Encoder()


def read(data: bytes) -> InputLine:
    """A line that was checked before."""
    return _INPUT.decode(data)


class LineChecker:
    """Checks the lines of one batch, in their order. `errors` says what is wrong with them."""

    def __init__(self, endpoint: str, servable: Servable, max_lines: int) -> None:
        self._endpoint = endpoint
        self._operation: Operation = ENDPOINTS[endpoint]
        self._servable = servable
        self._max_lines = max_lines
        self._first_uses: dict[str, int] = {}
        self.errors: list[LineError] = []

    @property
    def lines(self) -> int:
        """Valid requests so far."""
        return len(self._first_uses)

    @property
    def hopeless(self) -> bool:
        """Whether there is no use in checking further lines."""
        return self.lines > self._max_lines or len(self.errors) >= MAX_ERRORS

    def check(self, number: int, data: bytes) -> str | None:
        """The `custom_id` of a valid request; None for a blank line or an invalid one."""
        if self.hopeless or not data.strip():
            return None
        error = self._check(number, data)
        if not isinstance(error, LineError):
            return error
        self.errors.append(error)
        return None

    def finish(self) -> None:
        """All lines were checked, or it is hopeless."""
        if self.lines > self._max_lines:
            self.errors = [too_many(self._max_lines)]
        elif not self.lines and not self.errors:
            self.errors.append(LineError("empty_file", "The input file holds no requests."))

    def _check(self, number: int, data: bytes) -> str | LineError:
        try:
            line = _INPUT.decode(data)
        except msgspec.ValidationError as error:
            return LineError("invalid_request", f"{error}.", number)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return LineError("invalid_json_line", f"This line is not valid JSON: {error}.", number)
        if not 0 < len(line.custom_id) <= MAX_CUSTOM_ID_CHARS or not _CONTROL.isdisjoint(line.custom_id):
            message = (
                f"custom_id must be 1 to {MAX_CUSTOM_ID_CHARS} characters, none of them a control character."
            )
            return LineError("invalid_custom_id", message, number, "custom_id")
        if line.method != "POST":
            return LineError("invalid_method", "The method must be POST.", number, "method")
        if line.url != self._endpoint:
            message = f"The url must be the batch's endpoint, {self._endpoint}."
            return LineError("invalid_url", message, number, "url")
        return self._check_body(number, line) or self._check_use(number, line.custom_id)

    def _check_body(self, number: int, line: InputLine) -> LineError | None:
        try:
            request = validation.parse(self._operation, bytes(line.body))
        except ApiError as error:
            param = f"body.{error.param}" if error.param else "body"
            return LineError(error.code or "invalid_request", error.message, number, param)
        if request.stream:
            message = "A batch has no client to stream to: leave `stream` out."
            return LineError("stream_not_supported", message, number, "body.stream")
        if not self._servable(request.fields.model):
            message = f"The model `{request.fields.model}` does not exist or you do not have access to it."
            return LineError("model_not_found", message, number, "body.model")
        return None

    def _check_use(self, number: int, custom_id: str) -> str | LineError:
        first = self._first_uses.setdefault(custom_id, number)
        if first != number:
            message = f"The custom_id was already used in line {first}."
            return LineError("duplicate_custom_id", message, number, "custom_id")
        return custom_id


def too_many(max_lines: int) -> LineError:
    """A file with more requests than one batch may have."""
    return LineError("too_many_tasks", f"The input file holds more than {max_lines} requests.")


def answered(batch_id: str, number: int, custom_id: str, response: Response) -> bytes:
    """The result line of a request that was answered, well or not."""
    return _encode(OutputLine(result_id(batch_id, number), custom_id, response, None))


def unanswered(batch_id: str, number: int, custom_id: str, problem: Problem) -> bytes:
    """The result line of a request that was never answered."""
    return _encode(OutputLine(result_id(batch_id, number), custom_id, None, problem))


def result_id(batch_id: str, number: int) -> str:
    """The id of a line's result: the same whoever writes it."""
    return f"batch_req_{batch_id.removeprefix('batch_')}{number:08x}"


def one_line(body: bytes) -> msgspec.Raw:
    """An answer's body as JSON without line breaks; text becomes a JSON string."""
    try:
        value: Any = msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.Raw(_ENCODER.encode(body.decode(errors="replace")))
    if b"\n" in body or b"\r" in body:
        value = msgspec.json.format(body, indent=-1)
    return msgspec.Raw(bytes(value))


def _encode(line: OutputLine) -> bytes:
    return _ENCODER.encode(line) + b"\n"
