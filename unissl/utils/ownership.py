"""Whether other users of a machine may have written a file.

A cache may be on a shared disk. What is read from it is compiled code, images and features, so whoever may write there
decides what is run and learnt. Where the system has no users (Windows), nothing is checked.
"""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path


def only_writable_by_user(state: os.stat_result, *, own_group: bool = False) -> bool:
    """Whether no other user but root can have written it. With ``own_group`` a group that has no other members, as
    many systems create one for each user, may write too."""
    if not hasattr(os, "getuid"):
        return True
    group = bool(state.st_mode & stat.S_IWGRP) and not (own_group and _has_no_other_members(state.st_gid))
    return state.st_uid in (os.getuid(), 0) and not group and not state.st_mode & stat.S_IWOTH


def writable_by_others(folder: Path, *, own_group: bool = False) -> Path | None:
    """The folder, or one around it in which others could exchange it, to which other users may write; else None."""
    real = folder.resolve()
    if not only_writable_by_user(real.stat(), own_group=own_group):
        return real
    return next((parent for parent in real.parents if not _cannot_be_exchanged(parent.stat(), own_group)), None)


def _cannot_be_exchanged(state: os.stat_result, own_group: bool) -> bool:
    """Whether no other user can rename what is in a folder. In /tmp everybody may write, but rename only their own."""
    sticky = bool(state.st_mode & stat.S_ISVTX) and (not hasattr(os, "getuid") or state.st_uid in (os.getuid(), 0))
    return sticky or only_writable_by_user(state, own_group=own_group)


@cache
def _has_no_other_members(gid: int) -> bool:
    import grp  # Windows has neither
    import pwd

    try:
        user, group = pwd.getpwuid(os.getuid()), grp.getgrgid(gid)
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}
