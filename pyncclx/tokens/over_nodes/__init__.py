"""Token shuffles over nodes: each node gets a token once, and sends one sum back.

`TokenShuffle` (`pyncclx/tokens/`) moves tokens inside a node. Over nodes, one rank of each node is the *proxy* of a
token: it receives it over the rail, and dispatches it inside its node with the same kernel. All ranks compute the token
map from all choices (`cuda/tokens/over_nodes.cu`). In a combine each node adds up its results, and sends one sum back.

* `proxies.py`: the proxies of ranks, for any assignment of ranks to nodes;
* `memory.py`: a shuffle's memory on this rank: rows and workspaces inside the node, and buffers between nodes;
* `programs.py`: dispatch, combine and collect as programs of steps;
* `shuffle.py`: `SpanningShuffle`, what `Create_token_shuffle` returns over nodes.
"""
