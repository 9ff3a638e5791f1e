"""Logistic regression with Firth's penalty, which has finite estimates where a variable divides failures from none.

Firth 1993, "Bias reduction of maximum likelihood estimates"; Heinze & Schemper 2002, "A solution to the problem of
separation in logistic regression", for the test: twice the difference of penalised log-likelihoods, each at its
maximum, with the penalty of all columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Numbers = np.ndarray[Any, np.dtype[np.float64]]

_STEPS, _LONGEST_STEP, _HALVINGS, _PRECISE = 200, 5.0, 12, 1e-9


def penalised_fit(
    design: Numbers, failures: Numbers, trials: Numbers, free: Sequence[int] | None = None
) -> tuple[Numbers, float]:
    """The coefficients, log odds, and the penalised log-likelihood at its maximum.

    Each row of ``design``, which has full column rank, is one group of ``trials``. Only the columns ``free`` (default
    all) have coefficients other than 0; the penalty, half the logarithm of the determinant of Fisher's information, is
    that of all columns.
    """
    import numpy as np

    columns = list(range(design.shape[1]) if free is None else free)
    coefficients = np.zeros(design.shape[1])

    def state(at: Numbers) -> tuple[float, Numbers, Numbers]:
        odds = design @ at
        chances = 1 / (1 + np.exp(-odds))
        information = design.T @ (design * (trials * chances * (1 - chances))[:, None])
        likelihood = float(failures @ odds - trials @ np.logaddexp(0, odds))
        sign, logarithm = np.linalg.slogdet(information)
        return (likelihood + float(logarithm) / 2 if sign > 0 else -np.inf), chances, information

    value, chances, information = state(coefficients)
    for _ in range(_STEPS):
        weights = trials * chances * (1 - chances)
        leverages = weights * np.einsum("ij,ji->i", design, np.linalg.solve(information, design.T))
        score = design.T @ (failures - trials * chances + leverages * (0.5 - chances))
        step = np.zeros(len(coefficients))
        step[columns] = np.linalg.solve(information[np.ix_(columns, columns)], score[columns])
        step *= min(1.0, _LONGEST_STEP / max(np.abs(step).max(), 1e-300))
        for _ in range(_HALVINGS):
            found = state(coefficients + step)
            if found[0] >= value - 1e-12:
                break
            step /= 2
        coefficients = coefficients + step
        value, chances, information = found
        if np.abs(step).max() < _PRECISE:
            break
    return coefficients, value


def penalised_p(design: Numbers, failures: Numbers, trials: Numbers, asked: Sequence[int]) -> float:
    """The p value of "the coefficients of the columns ``asked`` are 0": the penalised likelihood-ratio test."""
    from scipy.special import gammaincc

    others = [column for column in range(design.shape[1]) if column not in set(asked)]
    ratio = penalised_fit(design, failures, trials)[1] - penalised_fit(design, failures, trials, others)[1]
    return float(gammaincc(len(asked) / 2, max(0.0, ratio)))
