"""The configuration: what is composed, that nothing in it is dead, and that every mistake names key, value and remedy."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

import pytest
from omegaconf import OmegaConf
from pydantic import BaseModel, Field

from boostapr.config import CONF, ROOT, ConfigError, RepoPath, Settings, compose, flatten, load, load_section, nearest
from stages.config import Config

PAPER = ["experiment=paper", *(f"benchmark.files.{split}=/data/{split}.jsonl" for split in ("train", "dev", "test"))]
PAPER += ["benchmark.files.test_ood=/data/ood.jsonl"]
GROUPS = sorted(path.name for path in CONF.iterdir() if path.is_dir() and path.name not in ("experiment", "base_model"))


def models(kind: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Every settings model that the root model reaches, by its class name."""

    def inside(annotation: Any) -> list[type[BaseModel]]:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            return [annotation]
        return [found for part in getattr(annotation, "__args__", ()) for found in inside(part)]

    found = {kind.__name__: kind}
    for field in kind.model_fields.values():
        for child in inside(field.annotation):
            found.update(models(child))
    return found


@pytest.mark.parametrize(
    "overrides", [["experiment=demo"], ["experiment=systems"], ["experiment=smoke"], PAPER], ids=lambda o: o[0]
)
def test_whole_runs_are_valid(overrides: list[str]) -> None:
    """Every experiment that the README names composes, and every value of it passes its check."""
    assert load(Config, overrides).name


def test_every_file_of_every_group_is_valid() -> None:
    """No file in conf/ holds a key that no settings model knows: extra keys fail, whoever chooses the file."""
    options = {group: sorted(path.stem for path in (CONF / group).glob("*.yaml")) for group in GROUPS}
    for n in range(max(map(len, options.values()))):  # the n-th file of each group at once: composing is slow
        choice = {group: files[min(n, len(files) - 1)] for group, files in options.items()}
        files = PAPER[1:] if choice["benchmark"] == "jsonl" else []
        load(Config, ["name=x", *(f"{group}={file}" for group, file in choice.items()), *files])


def test_every_experiment_is_tested() -> None:
    """A new file in conf/experiment must be added to `test_whole_runs_are_valid`."""
    assert {path.stem for path in (CONF / "experiment").glob("*.yaml")} == {"demo", "systems", "smoke", "paper"}


@pytest.mark.parametrize("name", sorted(models(Config)))
def test_every_setting_is_read_somewhere(name: str) -> None:
    """A setting that no code reads is a lie in conf/: each field occurs as `.field` outside of the settings models."""
    model = models(Config)[name]
    folders = ("boostapr", "envs", "reward_models", "stages")
    code = "\n".join(path.read_text() for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    code = re.sub(r'""".*?"""', "", code, flags=re.S)
    unread = [
        name
        for name, field in model.model_fields.items()
        if not re.search(rf"\.{name}\b", code)
        and not (get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1)  # nothing to decide
    ]
    assert unread == []


def test_no_tunable_number_has_a_default_in_code() -> None:
    """Numbers live in conf/ only; a default would let a run go on with a number that no file shows."""
    allowed = (bool, type(None))
    found = [
        f"{name}.{key}"
        for name, model in models(Config).items()
        for key, field in model.model_fields.items()
        if not field.is_required() and not isinstance(field.default, allowed)
    ]
    assert found == []


# -- messages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["experiment=demo", "credit.tau=0"], ["`credit.tau` is 0 (on the command line)", "greater than 0"]),
        (["experiment=demo", "reward.tau=0"], ["unknown key `reward.tau`", "Did you mean `credit.tau`?"]),
        (["experiment=demo", "sft.learning_rat=1"], ["unknown key `sft.learning_rat`", "`sft.learning_rate`"]),
        (["experiment=demo", "+sft.learning_rat=1"], ["unknown key `sft.learning_rat`", "`sft.learning_rate`"]),
        (["experiment=dmo"], ["conf/experiment/ has no file dmo.yaml", "Did you mean `demo`?"]),
        (["experiment=demo", "sft=large"], ["conf/sft/ has no file large.yaml", "There are: demo, "]),
        (["experiment=demo", "sede=1"], ["unknown key `sede`", "Did you mean `seed`?"]),
        (["experiment=demo", "seed=[1"], ["cannot read the override `seed=[1`", "key=value"]),
        (["experiment=demo", "seed"], ["cannot read the override `seed`", "key=value"]),
        (["experiment=demo", "seed=one"], ["`seed` is 'one' (on the command line)", "valid integer"]),
        (["experiment=demo", "sft=null"], ["sft"]),
        (["experiment=demo", "credit.granularity=line"], ["`credit.granularity` is 'line'", "'edit_line'"]),
        (["experiment=demo", "sft.batch_size=3"], ["sft", "batch_size=3 is not a multiple of micro_batch_size"]),
        (["experiment=demo", "sft.template=${nowhere}"], ["`sft.template`", "nowhere"]),
        (["experiment=demo", "ppo.gamma=nan"], ["`ppo.gamma`", "finite number"]),
        ([], ["`name` has no value", "experiment=demo"]),
        (["experiment=paper"], ["`benchmark.files.train` has no value", "benchmark.files.train=..."]),
    ],
    ids=lambda value: " ".join(value) if value and "=" in value[-1] else "",
)
def test_a_mistake_becomes_one_message(overrides: list[str], expected: list[str]) -> None:
    """Whatever Hydra, OmegaConf or pydantic would have said: key, value, origin, and what to write instead."""
    with pytest.raises(ConfigError) as error:
        load(Config, overrides)
    message = str(error.value)
    for part in expected:
        assert part in message
    assert "Traceback" not in message
    assert "pydantic" not in message


def test_all_problems_come_at_once() -> None:
    """Three mistakes are not three starts."""
    with pytest.raises(ConfigError, match="3 problems"):
        load(Config, ["experiment=demo", "seed=-1", "credit.tau=0", "sandbox.workers=0"])


def test_the_origin_of_a_bad_value_is_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A value that no override gave is looked up in conf/: the message names the file to edit."""
    (tmp_path / "area").mkdir()
    (tmp_path / "config.yaml").write_text("defaults: [{area: one}, _self_]\n")
    (tmp_path / "area" / "one.yaml").write_text("tau: 0\n")
    monkeypatch.setattr("boostapr.config.CONF", tmp_path)

    class Area(Settings):
        tau: float = Field(gt=0)

    with pytest.raises(
        ConfigError, match=re.escape("`area.tau` is 0 (in conf/area/one.yaml), but it should be greater")
    ):
        load_section(Area, "area")
    with pytest.raises(ConfigError, match=r"no section `arena`.*Did you mean `area`"):
        load_section(Area, "arena")


def test_values_of_a_union_are_named_by_their_key() -> None:
    """pydantic puts the type that it tried into the location; the user must see the key alone."""

    class Area(Settings):
        kv: Annotated[int, Field(gt=0)] | None

    class Root(Settings):
        area: Area

    with pytest.raises(ConfigError, match=r"`area\.kv` is -1"):
        from boostapr.config import validate

        validate(Root, OmegaConf.create({"area": {"kv": -1}}))


def test_repo_paths_do_not_depend_on_the_current_folder() -> None:
    """Shipped files are found wherever the command is started, and a dump stays the same if the clone is moved."""

    class Area(Settings):
        path: RepoPath

    area = Area(path=Path("requirements/cpu.txt"))
    assert area.path.is_file()
    assert area.model_dump(mode="json") == {"path": "requirements/cpu.txt"}
    assert Area(path=Path("/etc/hosts")).path == Path("/etc/hosts")


def test_small_parts() -> None:
    assert flatten({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "a.c": {}, "d": [1]}
    assert nearest("sft.learning_rte", ["ppo.learning_rate", "sft.learning_rate", "sft.lora"]) == "sft.learning_rate"
    assert nearest("sft.tau", ["sft.lora", "credit.tau"]) == "credit.tau"
    assert nearest("zzz", ["abc"]) is None
    assert compose(["name=x"]).name == "x"
