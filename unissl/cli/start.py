"""Whether `unissl train` starts a run or goes on with one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from unissl.config import Tree
    from unissl.runs import Run


def start_or_resume(
    tree: Tree, recipe: str | None, out: Path | None, resume: bool | Literal["auto"], reference: bool, quiet: bool
) -> tuple[Run, bool]:
    """The finished run, and whether labels-only is wanted beside it."""
    from unissl.distributed.agreement import from_first
    from unissl.errors import UserError
    from unissl.recipes import with_recipe
    from unissl.record import REFERENCE, RunFolder
    from unissl.run_config import build_config, stored_config
    from unissl.runs import resume as resume_run
    from unissl.runs import run as start_run

    if resume:
        if out is None:
            raise UserError("--resume needs --out with the folder of the run to continue.")
        folder = RunFolder(out)
        if resume != "auto":
            if recipe is not None:
                raise UserError("--resume takes its settings from the run folder; leave out --recipe.")
            alone = from_first(lambda: folder.finished and not (folder.path / REFERENCE).is_dir())
            return resume_run(out, tree, quiet=quiet), reference and not alone
        if from_first(lambda: folder.holds_run):
            said = tree if recipe is None else with_recipe(tree, recipe)
            from_first(lambda: stored_config(folder, said))  # refuses another one before anything is said
            if folder.finished or not quiet:
                print(f"{out} is finished already" if folder.finished else f"continuing {out}", flush=True)
            return resume_run(out, said, quiet=quiet), reference
    aim: float | None = None
    reasons: tuple[str, ...] = ()
    if recipe is None:
        from unissl.advice import with_advice

        advice = from_first(lambda: with_advice(tree))
        tree, recipe, aim, reasons = advice.settings, advice.recipe, advice.aim, advice.reasons
    settings = build_config(with_recipe(tree, recipe))
    for reason in () if quiet else reasons:
        print(reason, flush=True)
    compared = reference and has_reference(settings.method.name)
    return start_run(settings, out, quiet=quiet, reference=compared, aim=aim), reference


def has_reference(method: str) -> bool:
    """Whether labels-only says something about a method: one that learns from a pool without its labels."""
    from unissl.methods.registry import get_method

    return method != "labels-only" and "pool labels" not in get_method(method).needs
