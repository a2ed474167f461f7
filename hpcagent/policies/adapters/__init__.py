"""Other people's optimisers as policies, and our policies as a generator that others can use.

`optuna` (samplers of Optuna), `ax` (Ax, Gaussian processes of BoTorch) and `gest` (any generator of the gest-api
standard, and ours as one). None of these packages is needed, or imported, unless the policy is asked for.
"""
