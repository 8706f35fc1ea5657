"""The machine code that the kernels become, held to what is expected of it: `python -m ci codegen`, without a GPU."""
