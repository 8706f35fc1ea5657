"""What is true: the operator in float64 and in rational arithmetic, and the error bounds of a correct kernel.

Knows nothing of Triton, Hypothesis or the kernels. Start at `reference.expect.expect`, which returns, for every
element of the output and of the three gradients, the exact value and the largest error a correct kernel may make.
"""
