"""Making token shuffles."""

from __future__ import annotations

from typing import Any

from ..team.base import IntraBase
from ..tokens.shuffle import TokenShuffle


class Shuffles(IntraBase):
    """Making token shuffles."""

    def Create_token_shuffle(
        self, num_experts: int, capacity: int, hidden: int, dtype: Any = "bfloat16", **options: Any
    ) -> TokenShuffle:
        """Make what moves tokens to the ranks of their experts, and the results back. Collective.

        The parameters are those of `pyncclx.TokenShuffle`.
        """
        return TokenShuffle(self, num_experts, capacity, hidden, dtype, **options)
