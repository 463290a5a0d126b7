"""Spans -> tokens -> token streams: alignment by bytes, allocation (Eq. 5), penalty (Eq. 7), shaping (Eq. 8)."""

from boostapr.credit.algorithms import CREDIT, CreditFunction
from boostapr.credit.align import Alignment, align, fit
from boostapr.credit.batch import batch_token_rewards
from boostapr.credit.shaping import allocate, format_penalty, shape
from boostapr.credit.statements import statement_units
from boostapr.credit.streams import CreditSettings, Rollout, TokenStreams
from boostapr.credit.tokens import UnknownTokenizer, token_bytes
from boostapr.credit.units import Granularity, Unit, units

__all__ = [
    "CREDIT",
    "Alignment",
    "CreditFunction",
    "CreditSettings",
    "Granularity",
    "Rollout",
    "TokenStreams",
    "Unit",
    "UnknownTokenizer",
    "align",
    "allocate",
    "batch_token_rewards",
    "fit",
    "format_penalty",
    "shape",
    "statement_units",
    "token_bytes",
    "units",
]
