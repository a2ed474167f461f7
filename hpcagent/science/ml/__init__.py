"""Models trained on data: regressors of properties, and interatomic potentials; both with measured errors."""
