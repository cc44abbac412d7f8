"""Token shuffles: dispatch tokens to experts and combine their results.

Counts stay on the device.
"""

from __future__ import annotations

from typing import Any

from .calls import collect_move, combine, combine_move, dispatch, dispatch_move
from .launch import Launching
from .parameters import SEND
from .rows import Handle, Rows


class TokenShuffle(Launching):
    """Moves tokens to the ranks of their experts, and the results back.

    `Intracomm.Create_token_shuffle` creates it.

    Parameters
    ----------
    comm : Intracomm
    num_experts : int
        Number of experts on all ranks.
    capacity : int
        Number of rows that a rank can receive.
    hidden : int
        Number of elements of a token, a multiple of 16.
    dtype : {"bfloat16", "float16", "float32"}
        Type of tokens and of experts' results. An array of uint16 is treated as bfloat16 with the same bits.
    k : int
        Number of experts for each token.
    max_tokens : int
        Number of tokens that a rank can dispatch at once.
    rows_dtype : str, default `dtype`
        The type that tokens are rounded to before they are sent: "bfloat16", "float16", or "float8_e4m3" with a scale
        for each 128 elements.
    layout : {"expert", "source"}, default "expert"
        How rows are grouped: by local expert or by source rank. In a group they have the order (source rank, token,
        choice).
    overflow : {"raise", "drop"}, default "raise"
        Rows beyond the capacity are dropped. With "raise", a later call then raises CapacityExceeded; with "drop",
        there is no error. With ``layout="expert"`` every local expert has an equal share of the capacity. With
        ``layout="source"`` all rows share it, and the first rows in the order (source rank, token, choice) are kept. A
        dropped choice adds nothing to its token's result.
    placement : array of int, shape (num_experts,) or (num_experts, replicas), optional
        The rank, or ranks, of every expert; -1 for none. Replicas take tokens in turn. Default: expert e is on rank
        ``e * size // num_experts``.
    blocks : int from 1 to 64, optional
        Blocks of the kernels, which determine the part of a GPU that they use. Ranks that share a GPU divide them. The
        GPU's multiprocessors and `PYNCCLX_CHANNELS` limit their number.

    Attributes
    ----------
    local_experts : list of int
        The experts of this rank, in ascending order.

    Notes
    -----
    All ranks pass the same values. The first dispatch allocates the memory; `Free`, the end of a ``with``, or the
    communicator's `Free` releases it. One dispatch, combine or collect runs at a time, in the order of the calls.

    Raises
    ------
    TypeError, ValueError
        If an argument has a wrong type or value.
    NotSupported
        If `hidden` is no multiple of 16, or if there are more than 1024 experts with ``layout="expert"``, counting
        replicas.
    CollectiveMismatch
        If the ranks pass different values.

    Examples
    --------
    >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
    >>> shuffle = comm.Create_token_shuffle(4, 16, 16, "f4", k=2, max_tokens=8)
    >>> choices = np.array([[0, 1], [1, -1], [3, 2]])
    >>> with shuffle:
    ...     rows, handle = shuffle.dispatch(np.ones((3, 16), "f4"), choices)
    ...     results = shuffle.combine(10 * rows.data, handle)
    >>> results[:, 0].tolist()
    [20.0, 10.0, 20.0]
    """

    def explain(self) -> str:
        """Describe how dispatch and combine run. Collective at the first use.

        Returns
        -------
        str
            A sentence with the number of the kernels' blocks, the largest number of tokens that are sent as LL128
            lines, and the bytes of memory.
        """
        memory = self.memory()
        return (
            f"kernels dispatch and combine on {memory.blocks} blocks; up to {memory.parts.few_tokens} tokens a rank go "
            "as lines, their choices as packets; of more, counts go as packets, then rows straight to where they "
            f"belong, in {memory.nbytes} bytes of memory that all ranks have mapped"
        )

    def dispatch(
        self,
        tokens: Any,
        topk_ids: Any = None,
        topk_weights: Any = None,
        *,
        handle: Handle | None = None,
        transform: Any = None,
    ) -> tuple[Rows, Handle]:
        """Send every token to the ranks of its experts.

        Collective, also for a rank without tokens.

        Parameters
        ----------
        tokens : device array, shape (tokens, hidden), of the shuffle's dtype
        topk_ids : device array, shape (tokens, k), int32 or int64
            The experts of each token; -1 chooses none. The kernel reads them when it runs. It ignores invalid numbers,
            for which a later call raises ValueError.
        topk_weights : device array, shape (tokens, k), float32, optional
            Default: all 1.
        handle : Handle, optional
            Handle of an earlier dispatch of this shuffle, instead of `topk_ids` and `topk_weights`. The dispatch uses
            the same routing, and exchanges no counts. All ranks pass a handle, or none does.
        transform : pyncclx.Transform, optional
            Applied to the tokens before they are sent. Results are rounded to the tokens' dtype.

        Returns
        -------
        rows : Rows
        handle : Handle
            For `combine`, and for dispatches with the same routing.

        Raises
        ------
        TypeError, ValueError
            If an array has a wrong type or shape, there are too many tokens, the handle belongs to another shuffle, or
            the shuffle or its communicator has been freed.
        RuntimeError
            If a dispatch or combine has begun and not ended.
        CapacityExceeded
            If an earlier dispatch had more rows for this rank than its capacity.

        Examples
        --------
        See `TokenShuffle`. With the same routing again: ``rows, handle = shuffle.dispatch(others, handle=handle)``.
        """
        return dispatch(self, tokens, topk_ids, topk_weights, handle, transform)

    def dispatch_begin(
        self,
        tokens: Any,
        topk_ids: Any = None,
        topk_weights: Any = None,
        *,
        handle: Handle | None = None,
        transform: Any = None,
    ) -> None:
        """Begin a dispatch, which proceeds during later work on the stream.

        `dispatch_end` ends it.

        Parameters
        ----------
        tokens, topk_ids, topk_weights, handle, transform
            As for `dispatch`, with the same exceptions. The arrays must not change until `dispatch_end`.
        """
        self.launch(dispatch_move(self, tokens, topk_ids, topk_weights, handle, transform), SEND)

    def dispatch_end(self) -> tuple[Rows, Handle]:
        """End the dispatch that has begun.

        Returns
        -------
        rows : Rows
        handle : Handle
            As for `dispatch`.

        Raises
        ------
        RuntimeError
            If no dispatch has begun.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> with comm.Create_token_shuffle(4, 16, 16, "f4", k=2, max_tokens=8) as s:
        ...     s.dispatch_begin(np.ones((1, 16), "f4"), np.array([[0, 3]]))
        ...     rows, handle = s.dispatch_end()
        >>> rows.counts.tolist()
        [1, 0, 0, 1]
        """
        result: tuple[Rows, Handle] = self._end("Dispatch")
        return result

    def combine(
        self, expert_out: Any, handle: Handle, *, out: Any = None, weighted: bool = True, transform: Any = None
    ) -> Any:
        """Send results back, and add up the results of each token. Collective.

        The sum has the same bits in every run and with every layout. A rank adds weight * result over its rows of the
        token, in the order of the choices, in single precision, and rounds to `dtype`. The token's rank adds these sums
        in rank order, in single precision, and rounds again.

        Parameters
        ----------
        expert_out : device array, shape (capacity, hidden), of the shuffle's dtype
            Results in the order of ``rows.data``. Rows past `total` are not read.
        handle : Handle
            Handle of the dispatch.
        out : device array, shape (tokens, hidden), of the shuffle's dtype or float32, optional
            Default: a new array of the shuffle's dtype.
        weighted : bool
            Whether to multiply results by the rows' weights. False: a plain sum.
        transform : pyncclx.Transform, optional
            Applied to the results before they are added. The transformed results are rounded to the shuffle's dtype.

        Returns
        -------
        array, shape (tokens, hidden)
            `out`. Zero for a token without rows.

        Raises
        ------
        TypeError, ValueError
            If an array has a wrong type or shape, the handle belongs to another shuffle, or the shuffle or its
            communicator has been freed.
        RuntimeError
            If a dispatch or combine has begun and not ended.

        Examples
        --------
        See `TokenShuffle`.
        """
        return combine(self, expert_out, handle, out, weighted, transform)

    def combine_begin(
        self, expert_out: Any, handle: Handle, *, out: Any = None, weighted: bool = True, transform: Any = None
    ) -> None:
        """Begin a combine, which proceeds during later work on the stream.

        `combine_end` ends it.

        Parameters
        ----------
        expert_out, handle, out, weighted, transform
            As for `combine`, with the same exceptions. The arrays must not change until `combine_end`.
        """
        self.launch(combine_move(self, expert_out, handle, out, weighted, transform), SEND)

    def combine_end(self) -> Any:
        """End the combine that has begun.

        Returns
        -------
        array, shape (tokens, hidden)
            As for `combine`.

        Raises
        ------
        RuntimeError
            If no combine has begun.
        """
        return self._end("Combine")

    def collect(self, values: Any, handle: Handle, *, out: Any = None) -> Any:
        """Send one number of each row back to the token that chose it. Collective.

        `values` has a number for each row, such as the gradient of its weight. Each choice of a token gets the number
        of the row that was sent for it.

        Parameters
        ----------
        values : device array, shape (capacity,), float32
        handle : Handle
            Handle of the dispatch.
        out : device array, shape (tokens, k), float32, optional
            Default: a new array.

        Returns
        -------
        array, shape (tokens, k), float32
            `out`. Zero for a choice without a row.

        Raises
        ------
        TypeError, ValueError, RuntimeError
            As for `combine`.

        Examples
        --------
        >>> comm = pyncclx.Communicator(MPI.COMM_SELF)
        >>> with comm.Create_token_shuffle(2, 4, 16, "f4", k=2, max_tokens=2) as s:
        ...     _, handle = s.dispatch(np.ones((1, 16), "f4"), np.array([[0, 1]]))
        ...     numbers = s.collect(np.arange(4, dtype="f4"), handle)
        >>> numbers.tolist()
        [[0.0, 1.0]]
        """
        return self.launch(collect_move(self, values, handle, out))
