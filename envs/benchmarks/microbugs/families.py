"""The families of microbugs' function templates. What is done with a template is in templates.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# Conditions on {x} against {k}: id, ways to say it, code.
CONDITIONS = [
    ("ge", ["at least {k}", "{k} or more"], "{x} >= {k}"),
    ("le", ["at most {k}", "{k} or less"], "{x} <= {k}"),
    ("gt", ["above {k}", "more than {k}"], "{x} > {k}"),
    ("lt", ["below {k}", "less than {k}"], "{x} < {k}"),
    ("eq", ["equal to {k}", "the same as {k}"], "{x} == {k}"),
    ("ne", ["not equal to {k}", "other than {k}"], "{x} != {k}"),
]
# Transformations of {x}: id, how to say it, code.
TRANSFORMS = [
    ("id", "{x}", "{x}"),
    ("add", "{x} plus {c}", "{x} + {c}"),
    ("sub", "{x} minus {c}", "{x} - {c}"),
    ("mul", "{x} times {c}", "{x} * {c}"),
    ("addk", "{x} plus {k}", "{x} + {k}"),
    ("subk", "{x} minus {k}", "{x} - {k}"),
]
OPERATORS = [("plus", "+"), ("minus", "-"), ("times", "*")]

OOD_FAMILIES = frozenset({"slice", "extreme_loop", "extreme_pair", "order", "stop_at", "running"})


@dataclass(frozen=True)
class Template:
    """One function: `params` are placeholders with their types (L list of int, I int, P small non-negative int, S str)."""

    family: str
    id: str
    params: tuple[str, ...]
    types: tuple[str, ...]
    body: str

    @property
    def out_of_distribution(self) -> bool:
        return self.family in OOD_FAMILIES


def _sub(text: str, **values: str) -> str:
    for key, value in values.items():
        text = text.replace("{" + key + "}", value)
    return text


def _template(family: str, variant: str, params: str, types: str, body: str) -> Template:
    return Template(
        family, f"{family}/{variant}" if variant else family, tuple(params.split()), tuple(types.split()), body
    )


def _filters() -> Iterator[Template]:
    """Loops over a list with a condition and a transformation."""
    for cond, says, code in CONDITIONS:
        said = "|".join(says)
        for trans, trans_says, trans_code in TRANSFORMS:
            variant = f"{cond}-{trans}"
            yield _template(
                "sum_if",
                variant,
                "xs k",
                "L I",
                (
                    f"# start from zero\n{{acc}} = 0\nfor {{x}} in {{xs}}:\n    # only {{x}} [{said}]\n    if {code}:\n"
                    f"        # add {trans_says}\n        {{acc}} += {trans_code}\nreturn {{acc}}"
                ),
            )
            yield _template(
                "list_if",
                variant,
                "xs k",
                "L I",
                (
                    f"{{res}} = []\nfor {{x}} in {{xs}}:\n    # only {{x}} [{said}]\n    if {code}:\n"
                    f"        # keep {trans_says}\n        {{res}}.append({trans_code})\nreturn {{res}}"
                ),
            )
            yield _template(
                "comprehension",
                variant,
                "xs k",
                "L I",
                (f"# {trans_says} for each {{x}} [{said}]\nreturn [{trans_code} for {{x}} in {{xs}} if {code}]"),
            )
            yield _template(
                "choose",
                variant,
                "x k n",
                "I I I",
                (
                    f"# when {{x}} is [{said}]\nif {code}:\n    # give {trans_says}\n    return {trans_code}\n"
                    f"# otherwise give {{n}}\nreturn {{n}}"
                ),
            )
        at = _sub(code, x="{xs}[{i}]")
        yield _template(
            "count_if",
            cond,
            "xs k",
            "L I",
            (
                f"# start from zero\n{{acc}} = 0\nfor {{x}} in {{xs}}:\n    # only {{x}} [{said}]\n    if {code}:\n"
                f"        # one more\n        {{acc}} += 1\nreturn {{acc}}"
            ),
        )
        yield _template(
            "index_of",
            cond,
            "xs k",
            "L I",
            (
                f"for {{i}} in range(len({{xs}})):\n    # {{xs}} at {{i}} is [{said}]\n    if {at}:\n"
                f"        # give {{i}}\n        return {{i}}\n# none: minus one\nreturn -1"
            ),
        )
        yield _template(
            "last_index",
            cond,
            "xs k",
            "L I",
            (
                f"# none: minus one\n{{acc}} = -1\nfor {{i}}, {{x}} in enumerate({{xs}}):\n    # {{x}} is [{said}]\n"
                f"    if {code}:\n        {{acc}} = {{i}}\nreturn {{acc}}"
            ),
        )
        yield _template(
            "any_item",
            cond,
            "xs k",
            "L I",
            (
                f"for {{x}} in {{xs}}:\n    # {{x}} is [{said}]\n    if {code}:\n        # true for one\n        return True\n"
                f"# false for none\nreturn False"
            ),
        )
        yield _template(
            "all_items",
            cond,
            "xs k",
            "L I",
            (
                f"for {{x}} in {{xs}}:\n    # {{x}} is not [{said}]\n    if not {code}:\n        # false for one\n"
                f"        return False\n# true for none\nreturn True"
            ),
        )
        yield _template(
            "pairs_where",
            cond,
            "xs ys",
            "L L",
            _sub(
                f"# start from zero\n{{acc}} = 0\nfor {{x}}, {{y}} in zip({{xs}}, {{ys}}):\n    # {{x}} is [{said}]\n"
                f"    if {code}:\n        # one more\n        {{acc}} += 1\nreturn {{acc}}",
                k="{y}",
            ),
        )


def _logic() -> Iterator[Template]:
    """Two conditions joined by and / or."""
    for first, says, code in CONDITIONS:
        for second, says2, code2 in CONDITIONS:
            if first == second:
                continue
            one, two = "|".join(says), _sub("|".join(says2), k="{n}")
            other = _sub(code2, k="{n}")
            for word in ("and", "or"):
                yield _template(
                    "both" if word == "and" else "either",
                    f"{first}-{second}",
                    "x k n",
                    "I I I",
                    (f"# {{x}} is [{one}] {word} [{two}]\nreturn {code} {word} {other}"),
                )


def _arithmetic() -> Iterator[Template]:
    for says, op in OPERATORS:
        for says2, op2 in OPERATORS:
            variant = f"{says}-{says2}"
            yield _template(
                "two_steps",
                variant,
                "k n m",
                "I I I",
                (f"# {{k}} {says} {{n}}\n{{acc}} = {{k}} {op} {{n}}\n# then {says2} {{m}}\nreturn {{acc}} {op2} {{m}}"),
            )
            yield _template(
                "with_constant",
                variant,
                "k n",
                "I I",
                (
                    f"# {{k}} {says} {{c}}\n{{acc}} = {{k}} {op} {{c}}\n# then {says2} {{n}}\n{{acc}} = {{acc}} {op2} {{n}}\n"
                    "return {acc}"
                ),
            )
            yield _template(
                "pairs",
                variant,
                "xs ys k",
                "L L I",
                (
                    "{res} = []\nfor {x}, {y} in zip({xs}, {ys}):\n"
                    f"    # {{x}} {says} {{y}}\n    {{acc}} = {{x}} {op} {{y}}\n    # keep it {says2} {{k}}\n"
                    f"    {{res}}.append({{acc}} {op2} {{k}})\nreturn {{res}}"
                ),
            )
            yield _template(
                "fold_pairs",
                variant,
                "xs ys",
                "L L",
                (
                    "# start from {c}\n{acc} = {c}\nfor {x}, {y} in zip({xs}, {ys}):\n"
                    f"    # {{acc}} {says2 if says2 != 'times' else 'plus'} {{x}} {says} {{y}}\n"
                    f"    {{acc}} {op2 if op2 != '*' else '+'}= {{x}} {op} {{y}}\nreturn {{acc}}"
                ),
            )
        yield _template(
            "from_one",
            says,
            "n k",
            "P I",
            (
                "{res} = []\n# from 1 to {n}\nfor {i} in range(1, {n} + 1):\n"
                f"    # keep {{i}} {says} {{k}}\n    {{res}}.append({{i}} {op} {{k}})\nreturn {{res}}"
            ),
        )
        yield _template(
            "from_zero",
            says,
            "n k",
            "P I",
            (
                "# start from {k}\n{acc} = {k}\n# from 0 below {n}\nfor {i} in range(0, {n}):\n"
                f"    # add {{i}} {says} {{c}}\n    {{acc}} += {{i}} {op} {{c}}\nreturn {{acc}}"
            ),
        )
        yield _template(
            "neighbours",
            says,
            "xs",
            "L",
            (
                "{res} = []\nfor {i} in range(len({xs}) - 1):\n"
                f"    # {{xs}} at {{i}} {says} the next one\n    {{acc}} = {{xs}}[{{i}}] {op} {{xs}}[{{i}} + 1]\n"
                "    {res}.append({acc})\nreturn {res}"
            ),
        )
        yield _template(
            "ends",
            says,
            "xs k",
            "L I",
            (
                f"# the first {says} the last\n{{acc}} = {{xs}}[0] {op} {{xs}}[-1]\n# then minus {{k}}\nreturn {{acc}} - {{k}}"
            ),
        )
    for word, rest in (("even", 0), ("odd", 1)):
        for trans, says, code in TRANSFORMS[:4]:
            yield _template(
                "positions",
                f"{word}-{trans}",
                "xs k",
                "L I",
                (
                    f"{{res}} = []\nfor {{i}}, {{x}} in enumerate({{xs}}):\n    # only {word} {{i}}\n    if {{i}} % 2 == {rest}:\n"
                    f"        # keep {says}\n        {{res}}.append({code})\nreturn {{res}}"
                ),
            )
    yield _template(
        "distance",
        "",
        "k n",
        "I I",
        (
            "# {k} minus {n}\n{acc} = {k} - {n}\n# when {acc} is below 0\nif {acc} < 0:\n    # give {n} minus {k}\n"
            "    return {n} - {k}\nreturn {acc}"
        ),
    )
    yield _template(
        "clamp",
        "",
        "x k n",
        "I I I",
        (
            "# when {x} is below {k}\nif {x} < {k}:\n    # give {k}\n    return {k}\n# when {x} is above {n}\nif {x} > {n}:\n"
            "    # give {n}\n    return {n}\nreturn {x}"
        ),
    )


def _strings() -> Iterator[Template]:
    for first in ("upper", "lower"):
        for second in ("upper", "lower"):
            yield _template(
                "join_case",
                f"{first}-{second}",
                "s t",
                "S S",
                (
                    f"# {{s}} in {first} case\n{{acc}} = {{s}}.{first}()\n# then {{t}} in {second} case\n"
                    f"return {{acc}} + {{t}}.{second}()"
                ),
            )
    for word in ("in", "not in"):
        yield _template(
            "count_chars",
            word,
            "s t",
            "S S",
            (
                f"# start from zero\n{{acc}} = 0\nfor {{x}} in {{s}}:\n    # only {{x}} {word} {{t}}\n    if {{x}} {word} {{t}}:\n"
                "        # one more\n        {acc} += 1\nreturn {acc}"
            ),
        )
        yield _template(
            "pick_chars",
            word,
            "s t",
            "S S",
            (
                f"# start from {{t}}\n{{acc}} = {{t}}\nfor {{x}} in {{s}}:\n    # only {{x}} {word} {{t}}\n"
                f"    if {{x}} {word} {{t}}:\n        # add {{x}}\n        {{acc}} += {{x}}\nreturn {{acc}}"
            ),
        )
    for word, method in (("starts", "startswith"), ("ends", "endswith")):
        yield _template(
            "edge",
            word,
            "s t k",
            "S S I",
            (
                f"# when {{s}} {word} with {{t}}\nif {{s}}.{method}({{t}}):\n    # give {{k}} plus {{c}}\n"
                "    return {k} + {c}\n# otherwise give {k}\nreturn {k}"
            ),
        )


def _out_of_distribution() -> Iterator[Template]:
    for word, code in (("first", "[:{n}]"), ("after the first", "[{n}:]")):
        yield _template("slice", word, "xs n", "L P", f"# {word} {{n}} of {{xs}}\nreturn {{xs}}{code}")
        yield _template(
            "slice",
            word + "-sum",
            "xs n k",
            "L P I",
            (f"# {word} {{n}} of {{xs}}\n{{res}} = {{xs}}{code}\n# their sum plus {{k}}\nreturn sum({{res}}) + {{k}}"),
        )
    for word, name in (("largest", "max"), ("smallest", "min")):
        yield _template(
            "extreme_pair",
            word,
            "xs ys",
            "L L",
            (f"# {word} of each pair\nreturn [{name}({{x}}, {{y}}) for {{x}}, {{y}} in zip({{xs}}, {{ys}})]"),
        )
        yield _template(
            "extreme_pair",
            word + "-k",
            "k n m",
            "I I I",
            (f"# {word} of {{k}} and {{n}}\n{{acc}} = {name}({{k}}, {{n}})\n# then plus {{m}}\nreturn {{acc}} + {{m}}"),
        )
        yield _template(
            "extreme_loop",
            word,
            "xs k",
            "L I",
            (
                f"# start from {{k}}\n{{acc}} = {{k}}\nfor {{x}} in {{xs}}:\n    # {word} so far\n"
                f"    {{acc}} = {name}({{acc}}, {{x}})\nreturn {{acc}}"
            ),
        )
        yield _template(
            "order",
            word,
            "xs n",
            "L P",
            (
                f"# {word} first\n{{res}} = sorted({{xs}}, reverse={word == 'largest'})\n# first {{n}} of {{res}}\n"
                "return {res}[:{n}]"
            ),
        )
    for cond, says, code in CONDITIONS[:4]:
        said = "|".join(says)
        yield _template(
            "stop_at",
            cond,
            "xs k",
            "L I",
            (
                f"{{res}} = []\nfor {{x}} in {{xs}}:\n    # stop at {{x}} [{said}]\n    if {code}:\n        # leave the loop\n"
                "        break\n    # keep {x}\n    {res}.append({x})\nreturn {res}"
            ),
        )
        yield _template(
            "running",
            cond,
            "xs k",
            "L I",
            (
                f"# start from zero\n{{acc}} = 0\n{{res}} = []\nfor {{x}} in {{xs}}:\n    # skip {{x}} [{said}]\n    if {code}:\n"
                "        # go on\n        continue\n    # add {x}\n    {acc} += {x}\n    # keep {acc}\n    {res}.append({acc})\n"
                "return {res}"
            ),
        )


def families() -> Iterator[Template]:
    """Every template, family by family."""
    for make in (_filters, _logic, _arithmetic, _strings, _out_of_distribution):
        yield from make()
