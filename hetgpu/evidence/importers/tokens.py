"""Who counted the output tokens: the server's usage is the truth, a client's re-tokenising a guess.

Text that a model wrote does not tokenise back to the tokens that it made (random weights: 75 for
64), and every rate and time per token inherits the error, in the flattering direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hetgpu.errors import DataError
from hetgpu.evidence.records import CountedBy

CLIENT_COUNTED = "output tokens counted by the client, not by the server"


@dataclass(frozen=True)
class TokenCount:
    """Output tokens of one request, who counted them, and what is doubtful about them."""

    tokens: int
    counted_by: CountedBy
    flags: tuple[str, ...] = ()

    def headline(self, allow_client_counts: bool = False) -> bool:
        """Whether the count may stand in a headline table."""
        return self.counted_by == "server" or allow_client_counts


def count_output_tokens(
    usage: Mapping[str, Any] | None, client_output_len: int | None, max_tokens: int | None
) -> TokenCount:
    """The output tokens of one request.

    Parameters
    ----------
    usage : the server's ``usage`` object; its ``completion_tokens`` counts whenever it is there.
    client_output_len : the client's own count of the text.
    max_tokens : what the request allowed; a higher count proves itself wrong and is flagged.

    Raises
    ------
    DataError : when neither side counted.
    """
    served = (usage or {}).get("completion_tokens")
    flags = []
    for who, count in (("client", client_output_len), ("server", served)):
        if count is not None and max_tokens is not None and count > max_tokens:
            flags.append(f"{who} counted {count}, over max_tokens {max_tokens}")
    if served is not None:
        return TokenCount(int(served), "server", tuple(flags))
    if client_output_len is None:
        mend = "ask the server for usage (stream_options.include_usage)"
        raise DataError("request", "output tokens", "counted neither by the server nor by the client", mend)
    return TokenCount(int(client_output_len), "client", (CLIENT_COUNTED, *flags))
