"""Cuts an upload into lines as it comes, without ever holding more than one line and one piece of it."""

Row = tuple[int, bytes]
"""A line's number, from 1, and its bytes with the line break."""

PIECE_BYTES = 1 << 20
"""Lines are handed over when there are this many bytes or `PIECE_ROWS` of them."""
PIECE_ROWS = 2_000


class LineTooLongError(ValueError):
    """A line exceeds what one request may be."""

    def __init__(self, line: int) -> None:
        super().__init__(line)
        self.line = line


class LineSplitter:
    """Feed it chunks; `piece` is what may be stored.

    Beyond `max_rows` lines, which no batch may have, the rest is kept by chunk instead of by line, so that a file of
    line breaks alone does not become millions of rows.
    """

    def __init__(self, max_line_bytes: int, max_rows: int) -> None:
        self._max_line_bytes = max_line_bytes
        self._max_rows = max_rows
        self._rest = bytearray()
        self._rows: list[Row] = []
        self._row = 0
        self._pending_bytes = 0
        self.bytes = 0
        self.lines = 0
        """Lines so far, those kept by chunk included."""

    @property
    def full(self) -> bool:
        """Whether `piece` should be stored before more is fed."""
        return self._pending_bytes >= PIECE_BYTES or len(self._rows) >= PIECE_ROWS

    def feed(self, chunk: bytes) -> None:
        """Take in what came.

        Raises:
            LineTooLongError: a line exceeds the limit.
        """
        self.bytes += len(chunk)
        self._rest += chunk
        if b"\n" in chunk:
            *whole, rest = bytes(self._rest).split(b"\n")
            self._rest = bytearray(rest)
            self._take(whole)
        if len(self._rest) > self._max_line_bytes:
            raise LineTooLongError(self.lines + 1)

    def finish(self) -> None:
        """Nothing more comes. A last line may lack its line break."""
        if self._rest:
            self.lines += 1
            self._keep(bytes(self._rest))
            self._rest = bytearray()

    def piece(self) -> list[Row]:
        """The rows not yet handed over."""
        rows, self._rows, self._pending_bytes = self._rows, [], 0
        return rows

    def _take(self, lines: list[bytes]) -> None:
        if self._row + len(lines) > self._max_rows:
            self.lines += len(lines)
            self._keep(b"\n".join([*lines, b""]))
            return
        for line in lines:
            self.lines += 1
            if len(line) > self._max_line_bytes:
                raise LineTooLongError(self.lines)
            self._keep(line + b"\n")

    def _keep(self, data: bytes) -> None:
        self._row += 1
        self._pending_bytes += len(data)
        self._rows.append((self._row, data))
