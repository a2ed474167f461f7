"""Which settings of an input script are left as they are, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcagent.science.lammps.script import Command
from hpcagent.science.lammps.settings import Settings, plain_style

__all__ = ["untouched"]

# Command -> what it decides, as `knobs` asks for it.
_DECIDES = {
    "neighbor": "neighbor",
    "neigh_modify": "neigh_modify",
    "newton": "newton",
    "processors": "processors",
    "suffix": "accelerator",
    "package": "accelerator",
    "kspace_style": "kspace",
    "pair_style": "cutoff",
    "kspace_modify": "kspace",
}
# Pair styles that LAMMPS refuses with `newton off`, with all that begin so.
_NEEDS_NEWTON = (
    "sw", "tersoff", "airebo", "rebo", "meam", "comb", "bop", "reaxff", "edip", "vashishta", "nb3b", "gw", "snap",
    "polymorphic", "extep", "threebody", "uf3", "pod", "mliap",
)  # fmt: skip
_KSPACE_FIXED = ("mesh", "gewald", "force", "mesh/disp", "gewald/disp", "force/disp/real", "force/disp/kspace",
                 "pressure/scalar", "collective", "cutoff/adjust", "overlap", "minorder")  # fmt: skip


def untouched(settings: Settings, included: Mapping[str, Sequence[Command]]) -> tuple[tuple[str, str], ...]:
    """What is left as it is, and why.

    Args:
        settings: What was read of the script, without this.
        included: Name -> commands of each script that it includes.
    """
    said: list[tuple[str, str]] = []
    for file, commands in included.items():
        there = {c.name for c in commands}
        said += [(what, f"`{name}` is in {file}, and only the script itself is changed")
                 for name, what in _DECIDES.items() if name in there]  # fmt: skip
    for name, what in _DECIDES.items():
        # Those of `kspace_modify` come before ours, and win over nothing; a package is looked at below.
        if name not in ("package", "kspace_modify") and settings.inside(name):
            said.append((what, f"an `if` of the script decides `{name}`"))
    said += [*_accelerator(settings), *_threads(settings)]
    pairs = {plain_style(settings.value(w)) for c in settings.named("pair_style") for w in c.words[1:]}
    needs = sorted(pair for pair in pairs if pair.startswith(_NEEDS_NEWTON))
    if needs:
        said.append(("newton", f"pair_style {needs[0]} needs `newton on`"))
    if settings.named("run_style"):
        said.append(("run_style", "it changes how the motion is integrated"))
    if settings.skin is None:
        said.append(("neighbor", "its skin is a variable without a plain value"))
    if len(settings.named("processors")) > 1 or any(word != "*" for word in settings.grid):
        said.append(("processors", f"the script asks for the grid {' '.join(settings.grid)}"))
    elif any(len(c.words) > 4 for c in settings.named("processors")):
        said.append(("processors", "the script says how ranks are laid out"))
    said += _left_of_kspace(settings)
    return tuple(said)


def _accelerator(settings: Settings) -> list[tuple[str, str]]:
    suffixes = {settings.value(w) for c in settings.named("suffix") for w in c.words[1:]}
    words = [*(c.words for c in settings.named("package")), *settings.inside("package")]
    packages = {settings.value(w[1]) for w in words if len(w) > 1}
    others = sorted((suffixes - {"off", "on", "opt", "omp"}) | (packages - {"omp"}))
    unknown = [word for word in others if "$" in word]
    if unknown:
        return [
            ("accelerator", f"{', '.join(unknown)} has no plain value; give it by `variable NAME index VALUE`")
        ]
    if others or len(settings.named("suffix")) > 1:
        return [("accelerator", f"the script has {', '.join(others) or 'several `suffix` commands'}")]
    return []


def _threads(settings: Settings) -> list[tuple[str, str]]:
    """Threads that stay as the script has them, by number: those of the environment would not count."""
    words = [*settings.inside("package")]
    if any("$" in word for c in settings.named("suffix") for word in c.words[1:]):
        words += [c.words for c in settings.named("package")]  # they are not replaced where a variable is varied
    counts = sorted({w[2] for w in words if w[1:2] == ["omp"] and len(w) > 2} - {"0"})
    plain = [count for count in counts if count.isdigit()]
    return [("threads", f"the script says `package omp {plain[0]}`")] if plain else []


def _left_of_kspace(settings: Settings) -> list[tuple[str, str]]:
    styles = settings.named("kspace_style")
    if not styles or styles[-1].words[1:2] == ["none"]:
        return []
    if settings.kspace is None:
        return [("kspace", "its accuracy is a variable without a plain value")]
    if len(styles) > 1:
        return [("kspace", "the script has several `kspace_style` commands")]
    kspace = settings.kspace
    fixed = sorted({word for words in kspace.kept for word in words if word in _KSPACE_FIXED})
    if fixed:
        return [("kspace", f"`kspace_modify` sets {', '.join(fixed)} by hand")]
    if not kspace.style.startswith(("pppm", "ewald")) or "disp" in kspace.style:
        return [("kspace", f"of the solvers only pppm and ewald are varied, not {kspace.style}")]
    if any(c.name == "fix" and len(c.words) > 3 and c.words[3] == "tune/kspace" for c in settings.commands):
        return [("kspace", "`fix tune/kspace` changes it during the run")]
    if settings.cutoffs is None:
        pairs = settings.named("pair_style")
        style = pairs[-1].words[1] if pairs and len(pairs[-1].words) > 1 else ""
        if not style:
            return [("cutoff", "the script has no `pair_style` of its own")]
        return [("cutoff", f"`pair_style {style}` is not one whose Coulomb cutoff can be changed alone here")]
    return []
