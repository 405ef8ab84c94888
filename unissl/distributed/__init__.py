"""One run on many processes, started by torchrun: the same mathematics as on one.

A batch is the *global* batch on every process. Two things are shared out by its rows and put together again: making the
views (:mod:`unissl.batches`) and running the network (:mod:`unissl.distributed.data_parallel`, with BatchNorm over all rows in
:mod:`unissl.distributed.batch_norm`). Everything else, so every loss, head, graph and running statistic of a method, is
computed by every process on the whole batch, hence equally, and no method knows that there are others.

With a fixed number of shards (:mod:`unissl.distributed.shards`) not even the last bit depends on how many there are.
"""
