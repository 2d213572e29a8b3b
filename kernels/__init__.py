"""GPU kernels in Triton, each beside its torch reference and its fast CPU form, one family a file."""
