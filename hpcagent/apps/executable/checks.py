"""What is refused of a program's command, names and files before anything runs."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from hpcagent.apps.executable.record import OUTPUT, PRINTED, ProgramFile, json_path
from hpcagent.apps.executable.words import FROM_RUN, check_name, names, pieces, plain_word, read_template
from hpcagent.errors import BadInput
from hpcagent.model.base import Scalar
from hpcagent.model.parameter import Parameter
from hpcagent.model.space import Space

__all__ = [
    "OWN",
    "check_choices",
    "check_left_out",
    "check_places",
    "check_words",
    "flat",
    "known_names",
    "used_names",
    "words_of",
]


OWN = ("command.txt", "errors.txt", "manifest.json", OUTPUT, "result.json", "stdin.json", PRINTED)
"""Names of files that the library itself writes into each run's directory."""


def check_choices(space: Space, paths: Mapping[str, str], where: str) -> None:
    """Refuse a file that a parameter chooses, where it would lie in the place of another one.

    Raises:
        BadInput: Its name is that of a file of the app, of the library, or of another parameter's choice.
    """
    taken = dict.fromkeys((*OWN, *paths), "a file that each run has")
    for parameter in space.parameters:
        for file in parameter.files:
            if file.name in taken:
                raise BadInput(
                    f"{where}: {file.name!r} of the parameter {parameter.name!r} is the name of "
                    f"{taken[file.name]}; rename one of them.",
                    value=file.name,
                )
        taken |= {file.name: f"a choice of {parameter.name!r}" for file in parameter.files}


def check_places(said: ProgramFile, paths: Mapping[str, str], space: Space, where: str) -> None:
    """Refuse files that cannot lie in one directory, and a metric that would be read from what a run is given.

    Args:
        said: The metrics.
        paths: Files that each run is given, by name in its directory.
        space: Parameters that choose a file.
        where: For messages.

    Raises:
        BadInput: One file is to be the folder of another, or a metric's file is an input.
    """
    for name in paths:
        folder = next((str(above) for above in PurePosixPath(name).parents if str(above) in {*paths, *OWN}), None)
        if folder is not None:
            raise BadInput(
                f"{where}: {name!r} would lie in a folder {folder!r}, which is the name of "
                f"{'a file of the library' if folder in OWN else 'another file'}; rename one of them.",
                value=name,
            )
    given = {*paths, *(file.name for p in space.parameters for file in p.files)}
    given |= {"command.txt", "manifest.json", "result.json", "stdin.json"}
    for metric, how in said.metrics.items():
        if how.file in given:
            raise BadInput(
                f"{where}, metrics.{metric}: {how.file!r} is there before the program begins, so an old number "
                "could be read as its result; let the program write into a file of another name.",
                value=how.file,
            )


def flat(command: Sequence[str | Sequence[str]]) -> list[str]:
    """The words of a command, those in lists of their own among them.

    Example:
        >>> flat(["mg", ["--levels", "{levels}"]])
        ['mg', '--levels', '{levels}']
    """
    return [one for word in command for one in ([word] if isinstance(word, str) else word)]


def words_of(command: str | Sequence[str | Sequence[str]], where: str) -> list[str | list[str]]:
    """The command word by word; words that are left out together are a list.

    Raises:
        BadInput: It is empty, or has words that only a shell understands.
    """
    words: list[str | list[str]]
    try:
        words = (
            list(shlex.split(command))
            if isinstance(command, str)
            else [word if isinstance(word, str) else list(word) for word in command]
        )
    except ValueError as error:
        raise BadInput(f"{where}: the command cannot be taken apart into words: {error}.", value=command) from None
    if not words or not words[0] or not isinstance(words[0], str):
        raise BadInput(f"{where}: the command is empty; give the program and its arguments.", value=command)
    if any(p.name for p in pieces(words[0], where)):
        raise BadInput(
            f"{where}: the program itself ({words[0]!r}) is not chosen by a parameter, since its content is part "
            "of the app; make one app of each, or one program that is told by an argument.",
            value=words[0],
        )
    for word in flat(words):
        if word in ("|", ">", ">>", "<", "&&", "||", ";", "&", "2>", "2>&1"):
            raise BadInput(
                f"{where}: {word!r} is a word of a shell, and no shell takes part. What the program prints is in "
                "output.txt and is read as 'stdout'; its input is given by stdin; several programs go into a "
                "script.",
                value=word,
            )
    return words


def known_names(space: Space, constants: Mapping[str, Scalar], where: str) -> dict[str, Any]:
    """Every name that has a value: of it the parameter, or True.

    Raises:
        BadInput: A constant has the name of something else, or is not finite.
    """
    for name, value in constants.items():
        if not name.isidentifier() or name in space or name in FROM_RUN:
            why = (
                "is a parameter too"
                if name in space
                else "is given by the run"
                if name in FROM_RUN
                else "is no name"
            )
            raise BadInput(f"{where}, constants: {name!r} {why}; choose another name.", value=name)
        if isinstance(value, float) and not abs(value) < float("inf"):
            raise BadInput(f"{where}, constants.{name}={value} is not finite.", value=value)
    found: dict[str, Any] = dict.fromkeys((*FROM_RUN, *constants), True)
    return found | {p.name: p for p in space.parameters}


def used_names(
    said: ProgramFile, words: Sequence[str], space: Space, folder: Path, known: Mapping[str, Any], where: str
) -> set[str]:
    """Names that the command, the environment and the templates have places for; all of them are known.

    Raises:
        BadInput: One is not, or is written in a form that does not suit it; a template cannot be read.
    """
    used: set[str] = set()
    texts = [*((word, f"{where}, command") for word in words)]
    texts += [(value, f"{where}, env.{name}") for name, value in said.env.items()]
    for text, place in texts:
        for piece in pieces(text, place):
            if piece.name:
                _check_place(piece.name, piece.form, known, said.constants, place)
                used.add(piece.name)
    for target, path in said.placed("templates").items():
        place = f"{where}, template {target}"
        parts = pieces(read_template(folder / Path(path).expanduser()), place, template=True)
        for piece in parts:
            if not piece.name:
                continue
            _check_place(piece.name, piece.form, known, said.constants, place, template=True)
            if piece.name in space and space[piece.name].kind == "text":
                raise BadInput(
                    f"{place}: {piece.name!r} is a text, which may be anything and so is not written into an "
                    "input file; list what it may be, as ha.Choice(...).",
                    value=piece.name,
                )
        if not any(names(parts)):
            raise BadInput(
                f"{place}: no ${{name}} is in it; list it under files, which are copied as they are.", value=target
            )
        used |= set(names(parts))
    return used


def check_left_out(command: Sequence[str | Sequence[str]], space: Space, where: str) -> None:
    """Refuse an option whose value would be left out without it, where its parameter does not apply.

    Raises:
        BadInput: There is one.
    """
    for before, word in pairwise(command):
        if not (isinstance(word, str) and isinstance(before, str)) or not before.startswith("-"):
            continue
        parts = pieces(word, where)
        if len(parts) == 1 and parts[0].name in space and space[parts[0].name].when is not None:
            name = parts[0].name
            raise BadInput(
                f"{where}: where {name!r} does not apply, {before!r} would be left without its value; write "
                f'{before}={{{name}}}, or both words in a list of their own: ["{before}", "{{{name}}}"].',
                value=name,
            )


def _check_place(
    name: str,
    form: str,
    known: Mapping[str, Any],
    constants: Mapping[str, Scalar],
    where: str,
    *,
    template: bool = False,
) -> None:
    check_name(name, known, where, template=template)
    of = known[name]
    values: Iterable[Scalar] = (constants[name],) if name in constants else ()
    if isinstance(of, Parameter):
        values = of.choices
    if any(isinstance(value, bool) for value in values):
        raise BadInput(
            f"{where}: {name!r} is true or false, which every program writes in its own way; list what this one "
            'takes, e.g. ha.Choice("yes", "no") or ha.Choice(1, 0).',
            value=name,
        )
    for value in values if template else ():
        if isinstance(value, str) and not plain_word(value):
            raise BadInput(
                f"{where}: {name!r} is {value!r:.100}, which is no plain word (letters, digits, _ + . / -), so it "
                "is not written into an input file; write it into the template itself.",
                value=value,
            )
    text = isinstance(of, Parameter) and of.kind not in ("float", "int", "choice")
    if form and (text or any(isinstance(value, str) for value in values)):
        raise BadInput(f"{where}: {name!r} is a text; the form {form!r} is one of numbers.", value=name)
    whole = (of.kind == "int" if isinstance(of, Parameter) else name in FROM_RUN) or any(
        isinstance(value, int) for value in values
    )
    if whole and "." in form and not form[-1].isalpha():
        raise BadInput(
            f"{where}: {form!r} asks for digits behind the point of {name!r}, which is a whole number; write "
            f"{{{name}}}, or {{{name}:{form}f}} if the program wants a point.",
            value=form,
        )
    if form.endswith(("d", "x", "X")):
        whole = not isinstance(of, Parameter) or of.kind == "int" or bool(of.choices)
        if not whole or any(isinstance(value, float) for value in values):
            raise BadInput(f"{where}: {name!r} is no whole number, so {form!r} would cut it off.", value=name)
        if "." in form:
            raise BadInput(f"{where}: {form!r} asks for digits behind the point of a whole number.", value=form)


def check_words(
    said: ProgramFile, words: Sequence[str], folder: Path, paths: Mapping[str, str], where: str
) -> None:
    """Refuse a word that names a file beside the app which the run would not have, and a key of what is no JSON.

    Raises:
        BadInput: There is one.
    """
    written = {how.file for how in said.metrics.values()} | set(said.artifacts.values())
    for word in words:
        if word in paths or word in written or word.startswith("-") or "{" in word or Path(word).is_absolute():
            continue
        if len(word) < 255 and (folder / word).is_file():
            raise BadInput(
                f"{where}: the command names {word!r}, which lies in {folder.absolute()}, but each run has a "
                "directory of its own. List it under files if the program reads it, under artifacts if it writes "
                "it.",
                value=word,
            )
    if said.stdout != "json":
        for name, how in said.metrics.items():
            if how.key is not None and how.file == PRINTED and said.stdout == "text":
                raise BadInput(
                    f'{where}, metrics.{name}: a key of what the program prints needs stdout = "json"; or name '
                    "the file that it writes.",
                    value=name,
                )
    for how in said.metrics.values():
        if how.key is not None:
            json_path(how.key)
