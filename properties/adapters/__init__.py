"""Public kernels as subjects: each module calls one with the operator's signature and declares what it promises.

Nothing here is imported unless it is named as a subject, so none of these packages needs to be installed.
"""
