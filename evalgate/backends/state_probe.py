"""The native engine opened to look at its recurrent state instead of asking it questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from evalgate.backends.models import find_model
from evalgate.backends.native import NativeBackend
from evalgate.backends.settings import Sections, parse_settings
from evalgate.engine.compression import Compression, StateCodec
from evalgate.engine.config import read_config
from evalgate.engine.retention import Retention, measure_retention
from evalgate.errors import UnsupportedError


class StateProbe(NativeBackend):
    """A model that compresses nothing, in fp32, and the codecs that its state can be held against."""

    def __init__(self, model: str, *, max_tokens: int) -> None:
        """Load a model.

        Raises UnsupportedError (it has no recurrent state), and what `NativeBackend` does.
        """
        if not read_config(find_model(model)).kda_layers:
            raise UnsupportedError(
                f"model {model} has no linear-attention (KDA) layer, so no state to see; choose a model that has one"
            )
        super().__init__(model, {}, profile="full", max_tokens=max_tokens)
        self._codecs: dict[str, Compression] = {}

    @property
    def widths(self) -> tuple[int, int]:
        """Key and value channels of one head's state."""
        width = self._llm.config.linear_width
        return width, width

    def add(self, name: str, sections: Sections) -> None:
        """Hold the state against the codec of profile ``name`` too; its other sections don't act on the state.

        Raises UnsupportedError for settings that this model or engine cannot do.
        """
        state = {section: settings for section, settings in sections.items() if section == "state"}
        codec = parse_settings(state, name, "fp32").compression
        try:
            codec.check(self._llm.config)
        except UnsupportedError as error:
            raise UnsupportedError(f"profile {name}: {error}") from error
        self._codecs[name] = codec

    def state_bytes(self, name: str | None = None) -> int:
        """Bytes of one session's recurrent state as it is, or as profile ``name`` stores it with what it carries on."""
        codec = StateCodec(Compression() if name is None else self._codecs[name])
        state = self._llm.states.recurrent[:, 0]
        specs = [*codec.form.specs(tuple(state.shape), state.dtype), *codec.error_specs(tuple(state.shape))]
        return sum(spec.nbytes for spec in specs)

    def measure(self, tokens: Sequence[int], report: Callable[[int, int], None]) -> Retention:
        """Stream ``tokens`` and read the states; as `measure_retention`."""
        return measure_retention(self._llm, tokens, self._codecs, report)
