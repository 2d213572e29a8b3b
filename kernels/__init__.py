"""GPU kernels in Triton, each beside its torch reference and its fast CPU form. Holds no kernel so far."""
