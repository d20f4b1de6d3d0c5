"""Every message that crosses a process boundary: one struct each, versioned, defined once.

`requests` holds the facts of a request's life (JSON), `fleet` the telemetry and registry, `policy` the live
configuration, `situation` the record of both, `ledger` what the accountant answers, `control` the low-rate control
plane (pydantic, because FastStream's AsyncAPI generator needs it). Adding an optional field keeps old events decoding;
anything else raises `SCHEMA` and keeps a decoder for the old form.
"""
