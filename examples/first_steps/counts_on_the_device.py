"""First step 5: all-to-all with counts on the device, and token shuffle."""

from start import comm, report, xp

# Rank r gets r + 1 rows from every rank. The counts are a device array:
# a kernel may have computed them.
counts = xp.arange(comm.size) + 1
rows = xp.full((int(comm.size * (comm.size + 1) // 2), 4), comm.rank, "f4")
received = xp.empty((64 * comm.size, 4), "f4")
received_counts, total = xp.empty(comm.size, "i8"), xp.empty(1, "i8")
sent, target = [rows, counts], [received, received_counts]
comm.Alltoallv(sent, target, layout="packed", total=total)
assert (received_counts == comm.rank + 1).all()
assert int(total[0]) == comm.size * (comm.rank + 1)
assert (received[: comm.rank + 1] == 0).all()  # rank 0's rows come first

# Tokens go to the ranks of their k experts. The results come back and are
# added up, with weights.
experts, k, tokens_here, hidden = 2 * comm.size, 2, 8, 32
tokens = xp.full((tokens_here, hidden), comm.rank + 1, "f4")
first = xp.arange(tokens_here)[:, None] % experts
ids = xp.concatenate([first, (first + 1) % experts], axis=1)  # two a token
weights = xp.full((tokens_here, k), 0.5, "f4")

with comm.Create_token_shuffle(
    experts, 256, hidden, "float32", k=k, max_tokens=tokens_here
) as shuffle:
    rows, handle = shuffle.dispatch(tokens, ids, weights)
    # In place of your experts; rows.offsets has the first row of each.
    results = 10 * rows.data
    combined = shuffle.combine(results, handle)
    assert (combined == 10 * tokens).all()
    report(shuffle.explain())
