"""An input script with other settings of speed: the user's own lines, with only those changed or added.

Every setting is a word of LAMMPS or a variable of the script (`${skin}`), so that the same function writes the
script whose settings are parameters and the one in which they have their values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcagent.apps.lammps.settings import Command, Cutoffs, Kspace, Settings, commands, moves

__all__ = ["CONVERGED", "FORCES", "GRIDS", "OWN", "as_rebuild", "check_script", "rewritten"]

OWN = "as_it_came"
"""The choice that leaves a setting as the script has it."""

GRIDS = {"x": "* 1 1", "y": "1 * 1", "z": "1 1 *", "xy": "* * 1", "xz": "* 1 *", "yz": "1 * *"}
"""Along which edges the box is cut; the words of `processors`."""

FORCES, CONVERGED = "tune.forces", "tune.forces_converged"
"""Files of the forces after the measured run: as they were computed, and converged."""

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
    measure_forces: bool = False,
    atoms: int = 10**9,
) -> str:
    """The script with other settings.

    Args:
        settings: What was read of the script.
        values: Setting -> its word: `accelerator`, `grid`, `newton`, `skin`, `bins`, `rebuild`, `kspace`,
            `accuracy`, `order`, `diff`, `coulomb`. One that is not named stays as it came.
        choices: Of `accelerator`, `grid` and `rebuild` where they are variables: what they may be.
        steps: In place of the number of steps of the last run.
        earlier: The most steps of each run before it.
        room: Neighbours of one atom that there has to be room for, where LAMMPS's default is too few.
        why: Setting -> a sentence that is written as a comment before its line.
        head: Lines before everything else.
        measure_forces: Whether the forces after the last run are written beside converged ones.
        atoms: How many there are, by which the way to converged forces is chosen.
    """
    lines = _Lines(settings.read.text)
    why, choices = why or {}, choices or {}
    top = [*head, *_top(settings, lines, values, choices, why)]
    _neighbours(settings, lines, values, choices, why, room)
    _long_range(settings, lines, values, why)
    if steps is not None:
        _steps(lines, settings.run, steps)
    for command in settings.commands if earlier is not None else ():
        number = settings.number(command.words[1]) if command.name == "run" and len(command.words) > 1 else None
        if number is not None and earlier is not None and number > earlier and command.first < settings.run.first:
            _steps(lines, command, str(earlier))
    text = "".join(f"{line}\n" for line in top) + lines.text()
    return text + (_forces(settings, atoms) if measure_forces else "")


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
        bonds = next((c.words[2] for c in settings.named("newton")[-1:] if len(c.words) > 2), None)
        for command in settings.named("newton"):
            lines.replace(command, [])
        top += [*_said(why, "newton"), " ".join(filter(None, ("newton", newton, bonds)))]
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
        skin = values.get("skin", f"{settings.skin:g}" if settings.skin is not None else "")
        made = [*_said(why, "skin", "bins"), f"neighbor {skin} {values.get('bins', settings.bins)}"]
        at = settings.named("neighbor")
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
        style = values.get("kspace", settings.named("kspace_style")[-1].words[1])
        accuracy = values.get("accuracy", f"{kspace.accuracy:g}")
        lines.replace(
            settings.named("kspace_style")[-1],
            [*_said(why, "kspace", "accuracy"), f"kspace_style {style} {accuracy}"],
        )
    if kspace is not None and {"order", "diff"} & set(values):
        order, diff = values.get("order", str(kspace.order)), values.get("diff", kspace.diff)
        at = max((*settings.named("kspace_style"), *settings.named("kspace_modify")), key=lambda c: c.first)
        lines.add_after(at, *_said(why, "order", "diff"), f"kspace_modify order {order} diff {diff}")
    cutoffs: Cutoffs | None = settings.cutoffs
    if cutoffs is not None and "coulomb" in values:
        words = ["pair_style", cutoffs.style, *cutoffs.before, values["coulomb"]]
        lines.replace(settings.named("pair_style")[-1], [*_said(why, "coulomb"), " ".join(words)])


def _forces(settings: Settings, atoms: int) -> str:
    """After the run: the forces as they are computed, and converged, at the same positions of the same atoms."""
    kspace = settings.kspace
    if kspace is None:
        return ""
    tight = min(1e-6, kspace.accuracy / _TIGHTER)
    solver = "ewald" if kspace.style in ("pppm", "ewald") and atoms <= _EWALD_ATOMS else kspace.style
    kept = [w for w in kspace.kept if not {"order", "diff"} & set(w)]
    again = [f"kspace_modify {' '.join(words)}" for words in kept]
    order = [] if solver == "ewald" else ["kspace_modify order 7 diff ik"]
    gone = [f"unfix {name}" for name in settings.random_fixes]
    said = "# The forces as this run computed them, and converged ones at the same positions."
    made = [
        "",
        said,
        *gone,
        *_written("tune_forces", FORCES),
        f"kspace_style {solver} {tight:g}",
        *again,
        *order,
        *_written("tune_converged", CONVERGED),
    ]
    return "\n".join(made) + "\n"


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
