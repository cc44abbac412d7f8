"""heat: resplit, matrix product, sums, means, sort, k-means and singular values of distributed tensors.

On GPUs one line comes before: heat stages tensors through the host unless it is told that MPI takes them.
"""

import os

import torch
from mpi4py import MPI

from support.clients import without_torchvision  # noqa: F401  before heat
from support.clients.record import timed, value

import heat as ht  # isort: skip

comm = MPI.COMM_WORLD
on_gpu = os.environ["CLIENT_DEVICE"] == "gpu" and torch.cuda.is_available()
if on_gpu:
    ht.use_device("gpu")
    if os.environ.get("CLIENT_GPU_AWARE") == "1":
        ht.core.communication.GPU_AWARE_MPI = True
sync = torch.cuda.synchronize if on_gpu else int
rows = 8192 if on_gpu else 512

ht.random.seed(7)
x = ht.random.rand(rows, rows, split=0, dtype=ht.float32)
turned = timed(comm, "resplit", lambda: ht.resplit(x, 1), sync=sync)
value(comm, "resplit", float(turned.sum()), float(turned[3, 5]))
total = timed(comm, "sum", lambda: ht.sum(x), sync=sync)
value(comm, "sum", float(total))
means = timed(comm, "mean over an axis", lambda: ht.mean(x, axis=0), sync=sync)
value(comm, "mean over an axis", float(means[3]), float(means[-1]))
a = ht.random.rand(2048 if on_gpu else 256, 2048 if on_gpu else 256, split=0)
b = ht.random.rand(*a.shape, split=1)
product = timed(comm, "matmul", lambda: ht.matmul(a, b), sync=sync)
value(comm, "matmul", float(product.sum()), float(product[3, 5]))
numbers = ht.random.rand(rows * 256, split=0, dtype=ht.float32)
found = timed(comm, "sort", lambda: ht.sort(numbers), sync=sync)
ordered = found[0] if isinstance(found, tuple) else found  # heat 1.9 returns no indices
value(comm, "sort", float(ordered[0]), float(ordered[rows]), float(ordered[-1]))
points = ht.random.randn(rows * 16, 8, split=0)
kmeans = ht.cluster.KMeans(n_clusters=4, init=ht.array(points.numpy()[:4]), max_iter=20)
timed(comm, "k-means", lambda: kmeans.fit(points), sync=sync)
value(comm, "k-means", float(kmeans.cluster_centers_.sum()))
tall = ht.random.rand(rows * comm.size, 16, split=0)
singular = timed(comm, "SVD", lambda: ht.linalg.svd(tall)[1], sync=sync)
value(comm, "SVD", float(singular.sum()))
