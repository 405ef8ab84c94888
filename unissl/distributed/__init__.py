"""One run on many processes, started by torchrun: the same mathematics as on one.

Every process sees the *global* batch. Two things are split by rows and gathered again: making the views
(:mod:`unissl.batches`) and running the network (:mod:`unissl.distributed.data_parallel`, with BatchNorm over all rows
in :mod:`unissl.distributed.batch_norm`). Every process computes everything else (losses, heads, graphs and running
statistics of a method) on the whole batch, hence equally. Methods contain no code for several processes.
"""
