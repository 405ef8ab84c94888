"""Fast CPU kernels behind ``Conv3x3`` and ``norm_act_conv``. The package can be deleted: see winograd.py."""
