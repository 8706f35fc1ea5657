"""The measured fault-detection score of the properties: wrong kernels that must be caught, right ones that must not.

`python -m ci mutants` runs it; the names of the modules say what each is for. Importing the package imports no torch.
"""
