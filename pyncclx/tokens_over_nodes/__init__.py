"""Token shuffles over nodes: a token crosses once to each node that needs it, and a sum once comes back.

`TokenShuffle` (`pyncclx/tokens/`) moves tokens inside a node. Over nodes a rank of each node, the *proxy* of a token
there, gets it over the rail and dispatches it inside its node with the same kernel, on ways that all ranks compute from
all choices (`cuda/tokens/over_nodes.cu`). A combine does the same backwards: each node adds up, and one sum crosses.

* `proxies.py`: who is whose proxy, for any assignment of ranks to nodes;
* `parameters.py`: the argument of the kernels;
* `memory.py`: what a shuffle has on this rank: rows and workspaces of its node's part, and of what crosses;
* `programs.py`: dispatch, combine and collect as programs of steps;
* `shuffle.py`: `SpanningShuffle`, what `Create_token_shuffle` returns over nodes.
"""
