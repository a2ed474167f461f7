"""Which model is asked, at which address: by the environment or an argument, never by itself."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from hpcagent.errors import BadInput

if TYPE_CHECKING:
    from pydantic_ai.models import Model

__all__ = ["KEY", "MODEL", "URL", "Chosen", "chosen", "not_asked", "opened"]

MODEL = "HPCAGENT_MODEL"
URL = "HPCAGENT_MODEL_URL"
KEY = "HPCAGENT_MODEL_KEY"
NEEDS = "a supervisor needs packages that are not installed: pip install 'hpcagent[agents]'"
TIMEOUT_S = 600.0
NO_MODEL = (
    f"no language model is configured, and nothing was sent. Set {MODEL} to PROVIDER:MODEL (with that provider's "
    "key in the environment), "
    f"or {URL} to the address of an OpenAI-compatible server and {MODEL} to a model that it has. "
    "See docs/howto/models.md. Everything but `ask` works without a model."
)


@dataclass(frozen=True)
class Chosen:
    """A model, and where it is.

    Attributes:
        name: The model, with its provider in front where there is no address.
        url: Address of an OpenAI-compatible server; empty: the provider's own.
        keyed: Whether a key goes along.
    """

    name: str
    url: str = ""
    keyed: bool = False

    @property
    def where(self) -> str:
        """Where questions go, in words."""
        if self.url:
            key = f"with the key of {KEY}" if self.keyed else "without a key"
            return f"{self.name} at {self.url}, {key}"
        return f"{self.name}, with the key of that provider in the environment"


def chosen(name: str = "", url: str = "") -> Chosen:
    """The model that is asked: as given, else as the environment says.

    Args:
        name: `PROVIDER:MODEL`, or a model of the server at `url`.
        url: Address of an OpenAI-compatible server, as `http://127.0.0.1:11434/v1`.

    Raises:
        BadInput: None is configured, or the address will not do.

    Example:
        >>> chosen("qwen3", "http://127.0.0.1:11434/v1").where
        'qwen3 at http://127.0.0.1:11434/v1, without a key'
    """
    asked = name or os.environ.get(MODEL, "").strip()
    at = url or ("" if name else os.environ.get(URL, "").strip())
    if name and not url and ":" not in name:
        at = os.environ.get(URL, "").strip()
    if not asked:
        missing_name = f"{URL} is set, {MODEL} is not: it names the model to ask there. " if at else ""
        raise BadInput(missing_name + NO_MODEL)
    if not at:
        if ":" not in asked:
            raise BadInput(
                f"{asked!r} names no provider: PROVIDER:MODEL, or an address in {URL}. Nothing was sent.",
                value=asked,
            )
        return Chosen(asked, keyed=True)
    keyed = bool(os.environ.get(KEY))
    return Chosen(asked, _checked(at, keyed), keyed)


def _checked(url: str, keyed: bool) -> str:
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError:
        raise BadInput("the address of the model is no URL. Nothing was sent.", value="(hidden)") from None
    if parts.username or parts.password:
        raise BadInput(f"the address of the model has a user or password in it: put the key into {KEY}.")
    if parts.scheme not in ("http", "https") or not host or parts.query or parts.fragment:
        raise BadInput(f"{url!r} is no address of a model: http(s)://HOST[:PORT]/v1. Nothing was sent.", value=url)
    if keyed and parts.scheme == "http" and not _loopback(host):
        raise BadInput(
            f"{KEY} would go to {host} without encryption. Use https, or a tunnel to 127.0.0.1, or unset {KEY}. "
            "Nothing was sent.",
            value=url,
        )
    return url.rstrip("/")


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def not_asked(model: Model, error: Exception) -> str:
    """Why a model could not be asked, at which address, and what to do."""
    at = f" at {model.base_url}" if model.base_url else ""
    return (
        f"the model {model.model_name}{at} could not be asked: {str(error).rstrip('.')}. See that its server "
        f"runs and can be reached from here, and that {URL} and {KEY} are those of it (docs/howto/models.md)."
    )


def opened(found: Chosen) -> Model:
    """A model to ask; nothing is sent before it is asked.

    Raises:
        BadInput: The extra `agents` is not installed, or the provider is not known or has no key.
    """
    try:
        from pydantic_ai.exceptions import UserError
        from pydantic_ai.models import infer_model
    except ImportError:
        raise BadInput(NEEDS) from None
    if found.url:
        return _compatible(found)
    try:
        return infer_model(found.name)
    except ImportError as error:
        raise BadInput(
            f"the provider of {found.name!r} needs a package that is not installed: {error}. Nothing was sent.",
            value=found.name,
        ) from None
    except UserError as error:
        raise BadInput(f"{found.name!r}: {error} Nothing was sent.", value=found.name) from None


def _compatible(found: Chosen) -> Model:
    from openai import AsyncOpenAI, Omit
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    # What the environment says for OpenAI itself (a key, an organisation) is not for the server at this address.
    unsent: dict[str, Any] = {"OpenAI-Organization": Omit(), "OpenAI-Project": Omit()}
    client = AsyncOpenAI(
        base_url=found.url,
        api_key=os.environ.get(KEY) or "none",
        default_headers=unsent,
        timeout=TIMEOUT_S,
        max_retries=2,
    )
    return OpenAIChatModel(found.name, provider=OpenAIProvider(openai_client=client))
