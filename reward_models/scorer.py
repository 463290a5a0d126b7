"""Scoring responses with trained reward models: what stage III, reranking and the heat map call."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from boostapr.credit import units
from boostapr.patches import parse_patch
from reward_models.encoding import PatchEncoder
from reward_models.r_line import RLine, load_r_line, place_units, unit_scores
from reward_models.r_seq import load_r_seq, sequence_scores

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Score:
    """`seq` is R_seq of the response; `units` R_line of each unit, in the order of `boostapr.credit.units` (empty if the
    response has no units, is too long for the backbone, or R_line was not loaded)."""

    seq: float
    units: list[float]


class RewardScorer:
    """R_seq and, if given, R_line, on one device."""

    def __init__(
        self,
        r_seq: tuple[torch.nn.Module, PatchEncoder, int],
        r_line: tuple[RLine, PatchEncoder, int] | None,
        batch_size: int,
    ) -> None:
        """Each model comes with its encoder and its longest input in tokens; `batch_size` responses go through at once."""
        self._r_seq = r_seq
        self._r_line = r_line
        self.batch_size = batch_size

    @classmethod
    def load(
        cls, r_seq_dir: Path, r_line_dir: Path | None, batch_size: int, device: str | None = None
    ) -> "RewardScorer":
        """Load trained models; `device` defaults to the first GPU if there is one.

        Raises:
            UserError: a folder holds no trained model of that kind, or its tokenizer splits text otherwise than in training.
        """
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        seq_model, seq_encoder, seq_info = load_r_seq(Path(r_seq_dir), place)
        line = None
        if r_line_dir is not None:
            line_model, line_encoder, line_info = load_r_line(Path(r_line_dir), place)
            line = (line_model, line_encoder, int(line_info["max_length"]))
        return cls((seq_model, seq_encoder, int(seq_info["max_length"])), line, batch_size)

    def score(self, responses: Sequence[bytes | str], granularity: str) -> list[Score]:
        """Scores of responses, in order. What a response scores does not depend on its company in the batch.

        A response longer than the backbone's `max_length` is scored by R_seq on its beginning and gets no units, so that its
        score goes to the last token; a warning says how many.

        Args:
            granularity: the units of `boostapr.credit.units` that R_line scores.

        Raises:
            ValueError: the granularity is unknown.
        """
        raw = [r.encode("utf-8", "surrogateescape") if isinstance(r, str) else r for r in responses]
        model, encoder, limit = self._r_seq
        ids = encoder.encode(raw)
        num_long = sum(len(own) > limit for own in ids)
        if num_long:
            logger.warning(
                "%d of %d responses are longer than %d tokens: R_seq reads their beginning", num_long, len(raw), limit
            )
        cut = [own if len(own) <= limit else [*own[: limit - 1], encoder.end_id] for own in ids]
        sequence = sequence_scores(model, encoder, cut, self.batch_size)
        spans = self._unit_scores(raw, granularity)
        return [Score(seq, own) for seq, own in zip(sequence, spans, strict=True)]

    def _unit_scores(self, responses: Sequence[bytes], granularity: str) -> list[list[float]]:
        found: list[list[float]] = [[] for _ in responses]
        if self._r_line is None:
            return found
        model, encoder, limit = self._r_line
        places = []
        for index, (response, ids) in enumerate(zip(responses, encoder.encode(responses), strict=True)):
            own = units(parse_patch(response), granularity)
            if own and len(ids) <= limit:
                places.append((index, ids, *place_units(encoder, ids, own)))
        scores = unit_scores(
            model,
            encoder,
            [ids for _, ids, _, _ in places],
            [unit_of_token for _, _, unit_of_token, _ in places],
            [len(scored_as) for *_, scored_as in places],
            self.batch_size,
        )
        for (index, _, _, scored_as), own_scores in zip(places, scores, strict=True):
            found[index] = [own_scores[unit] for unit in scored_as]
        return found
