"""What ingress can be told by its environment (`TOKENFLEET_INGRESS_*`)."""

from pathlib import Path

from pydantic import Field

from ingress.batch.settings import BatchSettings


class IngressSettings(BatchSettings):
    """Limits protect this process; timeouts guard against silent peers and are in wall seconds.

    How long a request may take is not set here: that is the policy's `request_timeout_s`, in engine seconds.
    """

    ingress_host: str = "127.0.0.1"
    ingress_port: int = Field(default=8080, ge=0, le=65535, description="0: any free port.")
    ingress_name: str = Field(
        default="", description="Names the journal's folder; must stay the same over restarts."
    )
    ingress_max_body_bytes: int = Field(default=8 << 20, gt=0)
    ingress_max_header_bytes: int = Field(default=16 << 10, gt=0)
    ingress_max_requests: int = Field(default=4096, gt=0, description="Requests in flight at once.")
    ingress_body_timeout_s: float = Field(default=60.0, gt=0, description="For a client to send its body.")
    ingress_decision_timeout_s: float = Field(default=1.0, gt=0)
    ingress_connect_timeout_s: float = Field(default=2.0, gt=0)
    ingress_first_byte_timeout_s: float = Field(default=600.0, gt=0)
    ingress_idle_timeout_s: float = Field(default=60.0, gt=0, description="Between chunks of one answer.")
    ingress_site_proxies: dict[str, str] = Field(
        default={},
        description="JSON: other site -> HTTP proxy (CONNECT) through which its engines are reached.",
    )
    ingress_max_answer_bytes: int = Field(
        default=64 << 20, gt=0, description="Of an answer that is not streamed."
    )
    ingress_drain_timeout_s: float = Field(
        default=10.0, ge=0, description="For streams to finish after SIGTERM."
    )

    ingress_tokenizers: dict[str, Path] = Field(
        default={},
        description="JSON: model (or model@version) -> folder with its tokenizer.json and chat template.",
    )
    ingress_token_cache_tokens: int = Field(
        default=16 << 20, gt=0, description="Kept of prompts that were tokenized, at 4 bytes each."
    )
    ingress_tokenize_timeout_s: float = Field(
        default=0.25,
        gt=0,
        description="For an engine to tokenize a prompt whose model has no tokenizer here.",
    )
    ingress_tokenize_concurrency: int = Field(
        default=32, ge=0, description="Prompts at engines' /tokenize at once; 0: engines are never asked."
    )

    @property
    def stable_name(self) -> str:
        """The journal's name: the same after a restart, unlike `replica`."""
        return self.ingress_name or f"ingress-{self.ingress_port}"

    @property
    def journal_path(self) -> Path:
        return self.state_dir / "ingress" / self.stable_name / "requests.journal"
