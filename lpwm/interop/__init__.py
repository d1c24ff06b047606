"""Other people's software: our models in their planners and environments, their models in our planners."""

from lpwm.interop.swm import ActionProcess, CostProblem, SwmModel, SwmPolicy, SwmSolver

__all__ = ["ActionProcess", "CostProblem", "SwmModel", "SwmPolicy", "SwmSolver"]
