"""Reading the configuration: Hydra composes `conf/`, pydantic checks it, and every mistake becomes one clear message.

Numbers live in `conf/` only. Each area defines a `Settings` model beside the code that it configures; `stages/config.py`
assembles them into one root model. A value is checked before any long work starts, and an error names the key, the
value, what is allowed, and where the value came from.
"""

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationResolutionError, OmegaConfBaseException
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, ValidationError

from boostapr.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
CONF = ROOT / "conf"


class ConfigError(UserError):
    """The configuration cannot be used as it stands; the message names the key and the remedy."""


class Settings(BaseModel):
    """Base of every settings model: unknown keys fail, values are finite, and nothing changes after the check."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SplitSettings(Settings):
    """Which instances of a split of the benchmark: after the first `skip`, the next `num_instances` (None: all)."""

    split: str
    skip: int = Field(ge=0)
    num_instances: int | None = Field(gt=0)


def _from_root(path: Path) -> Path:
    return path if path.is_absolute() else ROOT / path


def _to_root(path: Path) -> str:
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


# A file that the repository ships: a relative path is looked up from the repository, wherever the command was started.
# (In a dump it is relative again: a clone that was moved is still the same run.)
RepoPath = Annotated[Path, AfterValidator(_from_root), PlainSerializer(_to_root)]


def _local_model(name: str) -> str:
    return str(ROOT / name) if (ROOT / name).is_dir() else name


# A model: a folder (a relative one is looked up from the repository) or the name of a hub.
ModelPath = Annotated[str, AfterValidator(_local_model), PlainSerializer(lambda name: _to_root(Path(name)))]

S = TypeVar("S", bound=BaseModel)


def compose(overrides: Sequence[str] = ()) -> DictConfig:
    """The root config with `overrides` applied, as Hydra composes it.

    Raises:
        ConfigError: an override cannot be read, names no key or no config file.
    """
    try:
        return _compose(overrides)
    except _composition_errors() as error:
        raise ConfigError(_explain_override(overrides, error)) from error


def load(schema: type[S], overrides: Sequence[str] = ()) -> S:
    """Compose the config and check it against `schema`.

    Raises:
        ConfigError: as `compose` and `validate`.
    """
    return validate(schema, compose(overrides), overrides)


def load_section(schema: type[S], section: str, overrides: Sequence[str] = ()) -> S:
    """Compose the config and check one section of it, such as `reward`, against its own model."""
    config = compose(overrides)
    if section not in config:
        raise ConfigError(f"The configuration has no section `{section}`. {_suggest(section, list(map(str, config)))}")
    return _check(schema, resolved(config, overrides)[section], section, overrides)


def validate(schema: type[S], config: DictConfig, overrides: Sequence[str] = ()) -> S:
    """Check a composed config. `overrides` only serve to say where a bad value came from.

    Raises:
        ConfigError: listing every problem, one a line.
    """
    return _check(schema, resolved(config, overrides), "", overrides)


def resolved(config: DictConfig, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The config as plain Python values, every interpolation replaced by its value.

    Raises:
        ConfigError: a key is still `???`, or an interpolation points nowhere.
    """
    raw = OmegaConf.to_container(config, resolve=False)
    assert isinstance(raw, dict)
    missing = [key for key, value in flatten({str(key): value for key, value in raw.items()}).items() if value == "???"]
    if missing:
        lines = [f"`{key}` has no value: give one, as in `{key}=...`{_hint(key)}" for key in missing]
        raise ConfigError(_join(lines))
    try:
        values = OmegaConf.to_container(config, resolve=True)
    except InterpolationResolutionError as error:
        key = str(error.full_key or "")
        reason = str(error).split("\n", 1)[0]
        raise ConfigError(
            f"`{key}`{_origin(key, overrides)} refers to something that does not exist: {reason}"
        ) from error
    assert isinstance(values, dict)
    return {str(key): value for key, value in values.items()}


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mappings as one level of dotted keys; lists and empty mappings stay values."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            flat.update(flatten(value, f"{name}."))
        else:
            flat[name] = value
    return flat


def nearest(word: str, words: Iterable[str]) -> str | None:
    """The dotted key that `word` was probably meant to be: alike in its own section, or of its name in another one."""
    section, _, leaf = word.rpartition(".")
    words = list(words)
    siblings = {key.rpartition(".")[2]: key for key in words if key.rpartition(".")[0] == section}
    close = difflib.get_close_matches(leaf, siblings, n=1, cutoff=0.6)
    if close:
        return siblings[close[0]]
    return next((key for key in words if key.rpartition(".")[2] == leaf), None)


# -- messages -----------------------------------------------------------------------------------------------------------


def _compose(overrides: Sequence[str]) -> DictConfig:
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    if not CONF.is_dir():
        raise ConfigError(f"No configuration folder at {CONF}: run boostapr from a clone (`pip install -e .`).")
    running = GlobalHydra.instance().hydra  # Hydra is a singleton: inside `hydra.main`, make room for a moment
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
            return hydra_compose(config_name="config", overrides=list(overrides))
    finally:
        GlobalHydra.instance().hydra = running


def _composition_errors() -> tuple[type[Exception], ...]:
    from hydra.errors import HydraException

    return HydraException, OmegaConfBaseException, ValueError  # Hydra raises plain ValueErrors for odd group choices


def _join(lines: Sequence[str]) -> str:
    head = "The configuration has a problem" if len(lines) == 1 else f"The configuration has {len(lines)} problems"
    return f"{head}:\n" + "\n".join(f"  {line}" for line in lines)


def _hint(key: str) -> str:
    return " (or choose a whole run, as in `experiment=demo`)" if key == "name" else ""


def _suggest(word: str, words: Sequence[str]) -> str:
    close = nearest(word, words)
    if close:
        return f"Did you mean `{close}`?"
    section = word.rpartition(".")[0]
    siblings = sorted({key for key in words if key.rpartition(".")[0] == section} or words)
    return f"There are: {', '.join(siblings)}."


def _options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def _explain_override(overrides: Sequence[str], error: Exception) -> str:
    """Find the override that Hydra could not apply, and say what is wrong with it."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    applied: list[str] = []
    for text in overrides:
        try:
            override = OverridesParser.create().parse_override(text)
        except HydraException as parse_error:
            reason = str(parse_error).split("\n", 1)[0]
            return _join([f"cannot read the override `{text}`: write `key=value` ({reason})"])
        try:
            _compose([*applied, text])
        except _composition_errors() as failure:
            return _join([_explain_one(text, override.key_or_group, override.value(), applied, failure)])
        applied.append(text)
    return _join([" ".join(str(error).split())])


def _explain_one(text: str, key: str, value: object, applied: Sequence[str], failure: Exception) -> str:
    group = key.lstrip("/").split("@", 1)[0]
    options = _options(group)
    if options and not isinstance(value, dict | list) and str(value) not in options:
        return f"`{text}`: conf/{group}/ has no file {value}.yaml. {_suggest(str(value), options)}"
    keys = _all_keys(_compose(applied))
    if key not in keys:
        return f"unknown key `{key}` (in `{text}`). {_suggest(key, keys)}"
    return f"cannot apply `{text}`: {' '.join(str(failure).split())}"


def _all_keys(config: DictConfig) -> list[str]:
    raw = OmegaConf.to_container(config, resolve=False)
    assert isinstance(raw, dict)
    keys = dict.fromkeys(path.name for path in CONF.iterdir() if path.is_dir())
    for key in flatten({str(name): value for name, value in raw.items()}):
        parts = key.split(".")
        keys.update(dict.fromkeys(".".join(parts[:n]) for n in range(1, len(parts) + 1)))
    return list(keys)


def _check(schema: type[S], values: Mapping[str, Any], section: str, overrides: Sequence[str]) -> S:
    try:
        return schema.model_validate(values)
    except ValidationError as error:
        prefix = f"{section}." if section else ""
        # One mistake can show at several keys, where one refers to another (`${seed}`): the first is enough.
        items = {(str(item["loc"][-1:]), item["msg"], repr(item["input"])): item for item in reversed(error.errors())}
        problems = [_problem(schema, item, prefix, overrides) for item in reversed(items.values())]
        raise ConfigError(_join(list(dict.fromkeys(problems)))) from None


def _problem(schema: type[BaseModel], item: Any, prefix: str, overrides: Sequence[str]) -> str:
    location = [part for part in item["loc"] if not _is_type_tag(part)]
    key = prefix + ".".join(str(part) for part in location)
    origin = _origin(key, overrides)
    if item["type"] == "extra_forbidden":
        known = [prefix + name for name in _known_keys(schema)]
        return f"unknown key `{key}`{origin}. {_suggest(key, known)}"
    if item["type"] == "missing":
        return f"`{key}` has no value{origin}: give one, as in `{key}=...`"
    message = re.sub(r"^(Input should|Value error,) ?", "", item["msg"])
    if item["type"] == "value_error":  # a validator of ours: its message is a sentence about the value
        return (
            f"`{key or 'config'}`{origin}: {message}" if not key else f"`{key}` is {item['input']!r}{origin}: {message}"
        )
    return f"`{key}` is {item['input']!r}{origin}, but it should {message}"


def _is_type_tag(part: object) -> bool:
    """pydantic puts the name of the tried type of a union into the location; it is no key."""
    return isinstance(part, str) and ("[" in part or part in {"int", "float", "str", "bool", "none"})


def _known_keys(schema: type[BaseModel], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, field in schema.model_fields.items():
        keys.append(prefix + name)
        for kind in _models_in(field.annotation):
            keys.extend(_known_keys(kind, f"{prefix}{name}."))
    return keys


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [kind for part in getattr(annotation, "__args__", ()) for kind in _models_in(part)]


def _origin(key: str, overrides: Sequence[str]) -> str:
    """Where a value came from: the command line, or the file in conf/ that has the key."""
    for text in reversed(overrides):
        name = text.split("=", 1)[0].lstrip("+~")
        if name == key or key.startswith(f"{name}."):
            return " (on the command line)"
    chosen = dict(text.split("=", 1) for text in overrides if re.fullmatch(r"\w+=\w+", text))
    section, _, rest = key.partition(".")
    candidates = [("experiment/" + chosen["experiment"], key)] if "experiment" in chosen else []
    candidates += [(f"{section}/{name}", rest) for name in _options(section)] if rest else []
    found = [f"conf/{name}.yaml" for name, sub in [*candidates, ("config", key)] if _has(CONF / f"{name}.yaml", sub)]
    return f" (in {' or '.join(found)})" if found else ""


def _has(path: Path, key: str) -> bool:
    if not path.is_file():
        return False
    content = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    return isinstance(content, dict) and key in flatten({str(name): value for name, value in content.items()})
