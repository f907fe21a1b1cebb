"""Find the repeated blocks of a model. Called before sharding and activation checkpointing; changes nothing."""

from __future__ import annotations

from typing import TypeGuard

from torch import nn

from pilotkit.errors import ConfigError, Problem


def find_blocks(model: nn.Module, *, path: str | None = None) -> nn.ModuleList | None:
    """The longest `nn.ModuleList` whose children have one type, or the one at the dotted `path`.

    Of those that hold at least half as many parameters as the one that holds most: the experts of one layer may be more
    than there are layers, and are no blocks. Of two equally long lists the first in the order of definition. None when
    the model has no such list.
    Raises ConfigError when `path` is given and is not a filled ModuleList.
    """
    if path is not None:
        return _blocks_at(model, path=path)
    sizes = {
        module: sum(param.numel() for param in module.parameters()) for module in model.modules() if _is_uniform(module)
    }
    most = max(sizes.values(), default=0)
    # `max` takes the first of equals.
    return max((module for module, size in sizes.items() if 2 * size >= most), key=len, default=None)


def _is_uniform(module: nn.Module) -> TypeGuard[nn.ModuleList]:
    return isinstance(module, nn.ModuleList) and len({type(child) for child in module}) == 1


def _blocks_at(model: nn.Module, *, path: str) -> nn.ModuleList:
    try:
        module = model.get_submodule(path)
    except AttributeError:
        module = None
    if isinstance(module, nn.ModuleList) and len(module) > 0:
        return module
    names = [name for name, child in model.named_modules() if isinstance(child, nn.ModuleList) and len(child) > 0]
    found = "nothing of that name" if module is None else f"a {type(module).__name__} of other kind or empty"
    raise ConfigError(
        [
            Problem(
                "model.blocks",
                path,
                allowed=f"the path of a filled nn.ModuleList: {', '.join(names) or 'this model has none'}",
                fix=f"there is {found}; name one of these, or leave it null",
            )
        ]
    )
