"""An input script with other settings of speed: the user's own lines, with only those changed or added.

Every setting is a word of LAMMPS or a variable of the script (`${skin}`), so that the same function writes the
script whose settings are parameters and the one in which they have their values.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from hpcagent.science.lammps.script import Command, commands, nested
from hpcagent.science.lammps.settings import ALONE, Cutoffs, Kspace, Settings
from hpcagent.science.lammps.timeable import moves

__all__ = ["GRIDS", "OWN", "PHYSICAL", "as_rebuild", "check_script", "force_files", "given_words", "rewritten"]

OWN = "as_it_came"
"""The choice that leaves a setting as the script has it."""

GRIDS = {"x": "* 1 1", "y": "1 * 1", "z": "1 1 *", "xy": "* * 1", "xz": "* 1 *", "yz": "1 * *"}
"""Along which edges the box is cut; the words of `processors`."""

PHYSICAL = ("kspace", "accuracy", "order", "diff", "coulomb")
"""Settings that change forces, within the accuracy that is measured. No other one does, but for round-off."""

# Files of the forces after the measured run: as they were computed, and converged; at the same positions with the
# settings of the script as it came.
_FORCES, _CONVERGED = "tune.forces", "tune.forces_converged"
_OWN_FORCES, _OWN_CONVERGED = "tune.forces_as_it_came", "tune.forces_as_it_came_converged"

# How much tighter the converged forces are asked for than those of the script.
_TIGHTER = 100.0
# Ewald sums of so many atoms take about a second; they have no error of a mesh.
_EWALD_ATOMS = 2000


def as_rebuild(every: int, delay: int) -> str:
    """The word for a way to keep the neighbour list.

    Example:
        >>> as_rebuild(1, 5)
        'every1_delay5'
    """
    return f"every{every}_delay{delay}"


def _rebuild_words(word: str) -> str:
    every, delay = word.removeprefix("every").split("_delay")
    return f"neigh_modify every {int(every)} delay {int(delay)} check yes"


class _Lines:
    """The lines of a script, and what goes before, after and in place of each."""

    def __init__(self, text: str) -> None:
        self.raw = text.splitlines()
        self.instead: dict[int, list[str]] = {}
        self.after: dict[int, list[str]] = {}
        self.before: dict[int, list[str]] = {}

    def replace(self, command: Command, lines: Sequence[str]) -> None:
        kept = [f"# as it came: {line.strip()}" for line in self.raw[command.first : command.last + 1]]
        self.instead[command.first] = [*kept, *lines]
        for number in range(command.first + 1, command.last + 1):
            self.instead[number] = []

    def replace_inside(self, command: Command, old: str, new: str) -> bool:
        """Put one text in place of another that stands once in the lines of a command."""
        lines = self.raw[command.first : command.end]
        if sum(line.count(old) for line in lines) != 1:
            return False
        self.replace(command, [line.replace(old, new) for line in lines])
        return True

    def add_after(self, command: Command, *lines: str) -> None:
        self.after.setdefault(command.last, []).extend(lines)

    def add_before(self, command: Command, *lines: str) -> None:
        self.before.setdefault(command.first, []).extend(lines)

    def text(self, *, upto: int | None = None) -> str:
        found: list[str] = []
        for number, line in enumerate(self.raw if upto is None else self.raw[:upto]):
            found += self.before.get(number, [])
            found += self.instead.get(number, [line])
            found += self.after.get(number, [])
        return "\n".join(found) + "\n"


def rewritten(
    settings: Settings,
    values: Mapping[str, str],
    *,
    choices: Mapping[str, Sequence[str]] | None = None,
    steps: str | None = None,
    earlier: int | None = None,
    room: int | None = None,
    why: Mapping[str, str] | None = None,
    head: Sequence[str] = (),
    command_line: bool = False,
    measure_forces: bool = False,
    varied: Container[str] = (),
    atoms: int = 10**9,
) -> str:
    """The script with other settings.

    A setting that a variable of the script decides alone is set by that variable.

    Args:
        settings: What was read of the script.
        values: Setting -> its word: `accelerator`, `threads` (by a variable of the script), `grid`, `newton`,
            `skin`, `bins`, `rebuild`, `every`, `kspace`, `accuracy`, `order`, `diff`, `coulomb`. One that is not
            named stays as it came.
        choices: Of `accelerator`, `grid` and `rebuild` where they are variables: what they may be.
        steps: In place of the number of steps of the last run.
        earlier: The most steps of each run before it.
        room: Neighbours of one atom that there has to be room for, where LAMMPS's default is too few.
        why: Setting -> a sentence that is written as a comment before its line.
        head: Lines before everything else.
        command_line: Whether the variables that the script is given come from the command line again; else they
            are written into it.
        measure_forces: Whether the forces after the last run are written beside converged ones.
        varied: Settings that are not as the script came; where one of them changes forces, those of the script as
            it came are written too, at the same positions.
        atoms: How many there are, by which the way to converged forces is chosen.
    """
    lines = _Lines(settings.read.text)
    why, choices = why or {}, choices or {}
    by_variable = {settings.driven[name]: (word, name) for name, word in values.items() if name in settings.driven}
    values = {name: word for name, word in values.items() if name not in settings.driven}
    top = [*head, *_given(settings, lines, by_variable, why, command_line=command_line)]
    top += _top(settings, lines, values, choices, why)
    _neighbours(settings, lines, values, choices, why, room)
    _long_range(settings, lines, values, why)
    if steps is not None:
        _steps(lines, settings.run, steps)
    for command in settings.commands if earlier is not None else ():
        if earlier is not None and command.first < settings.run.first:
            _shorten(settings, lines, command, earlier)
    text = "".join(f"{line}\n" for line in top) + lines.text()
    return text + (_forces(settings, atoms, varied) if measure_forces else "")


def force_files(varied: Container[str]) -> dict[str, str]:
    """The files that a script with `measure_forces` writes, as the table `[forces]` of its contract.

    Example:
        >>> force_files(["skin"])
        {'computed': 'tune.forces', 'converged': 'tune.forces_converged'}
    """
    files = {"computed": _FORCES, "converged": _CONVERGED}
    if any(name in varied for name in PHYSICAL):
        files["beside"] = _OWN_FORCES
    if "coulomb" in varied:
        files["beside_converged"] = _OWN_CONVERGED
    return files


def given_words(settings: Settings, values: Mapping[str, str]) -> dict[str, str]:
    """The variables that the script is given, those among them that decide a setting with their new values."""
    by_variable = {settings.driven[name]: word for name, word in values.items() if name in settings.driven}
    return {name: by_variable.get(name, value) for name, value in settings.given.items()}


def _given(
    settings: Settings,
    lines: _Lines,
    by_variable: Mapping[str, tuple[str, str]],
    why: Mapping[str, str],
    *,
    command_line: bool,
) -> list[str]:
    """The lines that set variables before everything else; those that the script sets itself are changed there."""
    top: list[str] = []
    for name, own in {**settings.given, **{name: word for name, (word, _) in by_variable.items()}}.items():
        if name in settings.given:
            top += [] if command_line else [f"variable {name} index {own}"]
            continue
        made = [*_said(why, by_variable[name][1]), f"variable {name} index {own}"]
        at = next((c for c in settings.named("variable") if c.words[1:3] == [name, "index"]), None)
        if at is None:
            top += made  # a script that is included sets it, but keeps what was set before
        else:
            lines.replace(at, made)
    return top


def _shorten(settings: Settings, lines: _Lines, command: Command, most: int) -> None:
    """Make a run before the measured one no longer than so many steps, one in an `if` too."""
    inner = [words for words in nested(command.words) if command.name == "if" and words[0] == "run"]
    for words in [command.words] if command.name == "run" else inner:
        if len(words) < 2 or "upto" in words[2:]:
            continue  # up to which step: another length would be another run
        number = settings.number(words[1])
        if number is not None and number <= most:
            continue
        shorter = str(most) if number is not None else _at_most(words[1], most)
        if shorter is None:
            continue
        if words is command.words:
            _steps(lines, command, shorter)
        else:
            lines.replace_inside(command, f"run {words[1]}", f"run {shorter}")


def _at_most(word: str, most: int) -> str | None:
    """The lesser of a variable's value and a number, in LAMMPS's own words.

    Example:
        >>> _at_most("${n}", 100), _at_most("a*b", 100)
        ('$(v_n*(v_n<100)+100*(v_n>=100):%.0f)', None)
    """
    alone = ALONE.match(word)
    formula = f"v_{alone[1] or alone[2]}" if alone and word.startswith("$") else ""
    if not formula and word.startswith("$(") and word.endswith(")") and ":" not in word:
        formula = word[1:]
    return f"$({formula}*({formula}<{most})+{most}*({formula}>={most}):%.0f)" if formula else None


def _said(why: Mapping[str, str], *names: str) -> list[str]:
    return [f"# tuned: {why[name]}" for name in names if name in why]


def _steps(lines: _Lines, command: Command, steps: str) -> None:
    lines.replace(command, [" ".join(["run", steps, *command.words[2:]])])


def _top(
    settings: Settings,
    lines: _Lines,
    values: Mapping[str, str],
    choices: Mapping[str, Sequence[str]],
    why: Mapping[str, str],
) -> list[str]:
    """What must stand before the box is made."""
    top: list[str] = []
    accelerator, grid, newton = (values.get(name) for name in ("accelerator", "grid", "newton"))
    if accelerator is not None:
        for command in (*settings.named("suffix"), *settings.named("package")):
            lines.replace(command, [])
        top += _said(why, "accelerator", "threads")
        # `package omp 0` takes OMP_NUM_THREADS.
        ways = {"opt": ("suffix opt",), "omp": ("package omp 0", "suffix omp")}
        if accelerator.startswith("$"):
            top += [
                f'if "{accelerator} == {name}" then {" ".join(map(_quoted, way))}'
                for name, way in ways.items()
                if name in choices["accelerator"]
            ]
        else:
            top += ways.get(accelerator, ())
    if newton is not None:
        at = settings.named("newton")
        if at:
            lines.replace(at[-1], [*_said(why, "newton"), " ".join(["newton", newton, *at[-1].words[2:]])])
        else:
            top += [*_said(why, "newton"), f"newton {newton}"]
    if grid is not None:
        for command in settings.named("processors"):
            lines.replace(command, [])
        top += _said(why, "grid")
        if grid.startswith("$"):
            top += [
                f'if "{grid} == {g}" then {_quoted(f"processors {GRIDS[g]}")}'
                for g in choices["grid"]
                if g in GRIDS
            ]
        elif grid in GRIDS:
            top.append(f"processors {GRIDS[grid]}")
    return top


def _quoted(command: str) -> str:
    return f'"{command}"'


def _neighbours(
    settings: Settings,
    lines: _Lines,
    values: Mapping[str, str],
    choices: Mapping[str, Sequence[str]],
    why: Mapping[str, str],
    room: int | None,
) -> None:
    if "skin" in values or "bins" in values:
        at = settings.named("neighbor")
        words = [*at[-1].words[1:3], "bin"] if at else [f"{settings.skin:g}", "bin"]
        skin, bins = values.get("skin", words[0]), values.get("bins", words[1])
        made = [*_said(why, "skin", "bins"), f"neighbor {skin} {bins}"]
        if at:
            lines.replace(at[-1], made)
        else:
            lines.add_before(settings.first, *made)
    added = []
    rebuild = values.get("rebuild")
    if rebuild is not None and rebuild != OWN:
        added += _said(why, "rebuild")
        if rebuild.startswith("$"):
            added += [
                f'if "{rebuild} == {word}" then {_quoted(_rebuild_words(word))}'
                for word in choices["rebuild"]
                if word != OWN
            ]
        else:
            added.append(_rebuild_words(rebuild))
    if room is not None:
        added += ["# room for the neighbours of a larger skin", f"neigh_modify one {room} page {50 * room}"]
    if added:
        at = settings.named("neigh_modify")
        if at:
            lines.add_after(at[-1], *added)
        else:
            lines.add_before(settings.first, *added)


def _long_range(settings: Settings, lines: _Lines, values: Mapping[str, str], why: Mapping[str, str]) -> None:
    kspace: Kspace | None = settings.kspace
    if kspace is not None and {"kspace", "accuracy"} & set(values):
        own = settings.named("kspace_style")[-1].words
        style, accuracy = values.get("kspace", own[1]), values.get("accuracy", own[2])
        lines.replace(
            settings.named("kspace_style")[-1],
            [*_said(why, "kspace", "accuracy"), f"kspace_style {style} {accuracy}"],
        )
    if kspace is not None and {"order", "diff"} & set(values):
        both = {"order": str(kspace.order), "diff": kspace.diff}
        said = {n: values.get(n, own) for n, own in both.items() if n in values or n not in settings.driven}
        words = [word for pair in said.items() for word in pair]
        ifs = [c for c in settings.named("if") if any(w[0] == "kspace_modify" for w in nested(c.words))]
        at = max((*settings.named("kspace_style"), *settings.named("kspace_modify"), *ifs), key=lambda c: c.first)
        lines.add_after(at, *_said(why, "order", "diff"), f"kspace_modify {' '.join(words)}")
    cutoffs: Cutoffs | None = settings.cutoffs
    if cutoffs is not None and "coulomb" in values:
        words = ["pair_style", cutoffs.style, *cutoffs.before, values["coulomb"]]
        lines.replace(settings.named("pair_style")[-1], [*_said(why, "coulomb"), " ".join(words)])


def _forces(settings: Settings, atoms: int, varied: Container[str]) -> str:
    """After the run: the forces as they are computed, and converged, at the same positions of the same atoms.

    Where settings that change forces are varied, those of the script as it came follow: the error of a mesh
    differs from one configuration to another by several percent, so two settings are compared at the same one.
    """
    kspace = settings.kspace
    if kspace is None:
        return ""
    tight = min(1e-6, kspace.accuracy / _TIGHTER)
    solver = "ewald" if kspace.style in ("pppm", "ewald") and atoms <= _EWALD_ATOMS else kspace.style
    kept = [_without(words, ("order", "diff")) for words in kspace.kept]
    again = [f"kspace_modify {' '.join(words)}" for words in kept if words]
    order = [] if solver == "ewald" else ["kspace_modify order 7 diff ik"]
    converged = [f"kspace_style {solver} {tight:g}", *again, *order]
    own = [
        f"kspace_style {kspace.style} {kspace.accuracy:.15g}",
        *again,
        f"kspace_modify order {kspace.order} diff {kspace.diff}",
    ]
    files, cutoffs = force_files(varied), settings.cutoffs
    gone = [f"unfix {name}" for name in settings.random_fixes]
    said = "# The forces as this run computed them, and converged ones at the same positions."
    made = [
        "",
        said,
        *gone,
        *_written("tune_forces", files["computed"]),
        *converged,
        *_written("tune_converged", files["converged"]),
    ]
    if "beside_converged" in files and cutoffs is not None:
        # LAMMPS gives pairs with a cutoff of their own the common one here; that changes both of what follows, by
        # the same.
        made.append(" ".join(["pair_style", cutoffs.style, *cutoffs.before, f"{cutoffs.coulomb:.15g}"]))
    if "beside" in files:
        made += [*own, *_written("tune_own", files["beside"])]
    if "beside_converged" in files:
        made += [*converged, *_written("tune_own_converged", files["beside_converged"])]
    return "\n".join(made) + "\n"


def _without(words: Sequence[str], keywords: Sequence[str]) -> list[str]:
    """Words without keywords and the word after each.

    Example:
        >>> _without(["order", "7", "slab", "3.0"], ["order", "diff"])
        ['slab', '3.0']
    """
    at = {i + n for i, word in enumerate(words) if word in keywords for n in (0, 1)}
    return [word for i, word in enumerate(words) if i not in at]


def _written(name: str, file: str) -> list[str]:
    return [
        f"dump {name} all custom 1 {file} id fx fy fz",
        f"dump_modify {name} sort id format float %.12g",
        "run 0 post no",
        f"undump {name}",
    ]


FIRST_STEPS = 10
"""How many steps the energies of two scripts are compared over: before round-off has grown."""


def check_script(settings: Settings, values: Mapping[str, str], *, head: Sequence[str] = ()) -> str:
    """The start of the script with other settings: the energies of its first steps, to all digits.

    Where it begins with a minimisation, or its motion is random, only those of its first configuration.
    """
    text = rewritten(settings, values, head=head)
    first = next(filter(moves, commands(text)))
    cut = text.splitlines()[: first.first]
    steps = 0 if settings.first.name != "run" or settings.random else FIRST_STEPS
    return "\n".join(
        [
            *cut,
            "",
            "# The energies of the first steps, to all digits.",
            "thermo_style custom step temp pe ke etotal press",
            "thermo_modify norm no format float %.15g",
            "thermo 1",
            f"run {steps}",
            "",
        ]
    )
