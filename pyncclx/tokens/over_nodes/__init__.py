"""Token shuffles over nodes: a node receives a token once, and returns one sum.

`TokenShuffle` (`pyncclx/tokens/`) moves tokens inside a node. Over nodes, each token has a *proxy* in every other node
(`tokens/placement.py`): the rank that receives the token over the rail, and dispatches it inside its node with the same
kernel. All ranks compute the token map from all choices (`cuda/tokens/over_nodes.cu`). In a combine, each node adds up
its results of a token, and sends one sum back.

* `memory.py`: a shuffle's memory on this rank: rows and workspaces inside the node, and buffers between nodes;
* `programs.py`: dispatch, combine and collect as programs of steps;
* `shuffle.py`: `SpanningShuffle`, which `Create_token_shuffle` returns over nodes.
"""
